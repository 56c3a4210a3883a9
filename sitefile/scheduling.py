"""Defines the site file's sections about projects, the queue and automatic regroups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from scheduler.model import TimeLimitAction
from scheduler.policy.budgets import PauseBudget
from scheduler.policy.triggers import TriggerPolicy
from scheduler.queue.model import (
    DEFAULT_PROJECT,
    Preemption,
    ProjectShare,
    QueuePolicy,
)
from sitefile import names
from sitefile.quantities import NUMBER, off_word
from sitefile.words import exact_text

USERS_PRIORITY = 5
"""Default of the highest priority of users' jobs."""
MAX_WAITING = 200

Priority = Annotated[int, Field(ge=-100, le=100), NUMBER]
ProjectName = Annotated[str, StringConstraints(pattern=f"^{names.PROJECT}$")]
"""Job names start with ``<project>-``, and agents accept at most 41 characters."""
UserId = Annotated[int, Field(ge=1, le=2**31, strict=True), NUMBER]
"""A user or a group of the servers; never root."""
TimeOfDay = Annotated[
    str,
    BeforeValidator(exact_text),
    StringConstraints(pattern=r"^([01]\d|2[0-3]):[0-5]\d$"),
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ProjectModel(_Strict):
    """A project's share and quota."""

    name: ProjectName
    weight: Annotated[float, Field(gt=0), NUMBER] = 1.0
    quota: Annotated[int, Field(ge=0), NUMBER] | None = Field(
        None, description="endpoints it may hold at once; no limit when absent"
    )
    max_priority: Priority | None = Field(
        None, description="highest priority of its users' jobs; default: queue.max_priority"
    )
    uid: UserId | None = Field(
        None, description="user whose files its jobs read and write; default: users.uid"
    )
    gid: UserId | None = Field(None, description="their group; default: users.gid")


class QueueModel(_Strict):
    """Settings of the queue; see docs/scheduling.md."""

    fair_share: bool = True
    backfill: bool = True
    backfill_depth: Annotated[int, Field(ge=0), NUMBER] = 100
    aging_s: Annotated[float, Field(gt=0), NUMBER] = 3600.0
    patience_s: Annotated[float, Field(ge=0), NUMBER] = 6 * 3600.0
    switch_wait_s: Annotated[float, Field(ge=0), NUMBER] = Field(
        3600.0,
        description="with several optical switches, how long the first waiting job waits for"
        " endpoints that a regroup can bring closer together (locality regroup); 0: never",
    )
    preemption: Annotated[Preemption, BeforeValidator(off_word)] = Field(
        Preemption.OFF, description="priority: stoppable jobs make room for jobs of higher priority"
    )
    max_priority: Priority = Field(
        USERS_PRIORITY,
        description="highest priority of users' jobs; operators and admins may exceed it",
    )
    max_waiting: Annotated[int, Field(ge=1, le=10_000), NUMBER] = Field(
        MAX_WAITING, description="maximum waiting jobs of one project"
    )
    time_limit_action: TimeLimitAction = Field(
        TimeLimitAction.IGNORE,
        description="end: a job is ended at its time limit, unless it says otherwise",
    )


class ThresholdModel(_Strict):
    """Triggers a regroup when running jobs stay scattered for a while."""

    excess_span: Annotated[int, Field(ge=1), NUMBER]
    for_s: Annotated[float, Field(ge=0), NUMBER] = 60.0


class ScheduleModel(_Strict):
    """Triggers a regroup at fixed times."""

    every_s: Annotated[float, Field(gt=0), NUMBER] | None = None
    daily_at: list[TimeOfDay] = Field([], description="HH:MM in UTC")


class TriggersModel(_Strict):
    """Triggers of automatic regroups; a trigger is off unless it is listed here."""

    threshold: ThresholdModel | None = None
    pending: bool = Field(False, description="a regroup would let a waiting job start")
    schedule: ScheduleModel = ScheduleModel()
    min_interval_s: Annotated[float, Field(ge=0), NUMBER] = 300.0


class RatesModel(_Strict):
    """Link rates of a real site, required for predictions of gain."""

    access_bps: Annotated[float, Field(gt=0), NUMBER]
    inter_aggregator_bps: Annotated[float, Field(gt=0), NUMBER]


class RegroupModel(_Strict):
    """Budgets of every regroup, and triggers of automatic regroups."""

    cooldown_s: Annotated[float, Field(ge=0), NUMBER] = 0.0
    max_pauses_per_job_hour: Annotated[float, Field(ge=0), NUMBER] | None = None
    max_jobs_paused: Annotated[int, Field(ge=0), NUMBER] | None = Field(
        None, description="of one regroup that a trigger starts"
    )
    max_moves: Annotated[int, Field(ge=0), NUMBER] | None = Field(
        None, description="of one regroup that a trigger starts"
    )
    time_limit_s: Annotated[float, Field(gt=0, le=600), NUMBER] = 10.0
    worth: Literal["proven", "possible"] = Field(
        "possible", description="gain that an automatic regroup needs"
    )
    max_dark: Annotated[int, Field(ge=1), NUMBER] | None = Field(
        None, description="endpoints dark at once: a plan with more is carried out in batches"
    )
    max_pauses: Annotated[int, Field(ge=1, le=100), NUMBER] = Field(
        1, description="of a job by the batches of one plan"
    )
    park: bool = Field(
        False, description="idle endpoints may stay dark until the last batch of a plan"
    )
    recovery_s: Annotated[float, Field(ge=0), NUMBER] = Field(
        0.5, description="time until a job's transport runs again after its dark time"
    )
    rates: RatesModel | None = None
    triggers: TriggersModel = TriggersModel()


@dataclass(slots=True, frozen=True)
class SiteLinkRates:
    """Link rates in bit/s."""

    access_bps: float
    inter_aggregator_bps: float


@dataclass(slots=True, frozen=True)
class RegroupPolicy:
    """When and how often circuits move."""

    budget: PauseBudget = field(default_factory=PauseBudget)
    triggers: TriggerPolicy = field(default_factory=TriggerPolicy)
    max_jobs_paused: int | None = None
    max_moves: int | None = None
    time_limit_s: float = 10.0
    accept_open: bool = True
    """Whether a triggered regroup also runs when its gain is unknown."""
    recovery_s: float = 0.5
    rates: SiteLinkRates | None = None
    max_dark: int | None = None
    """Endpoints dark at once: a plan with more is carried out in batches; None is unlimited."""
    max_pauses: int = 1
    """Longest pause of a job by the batches of one plan."""
    park: bool = False
    """Idle endpoints may stay dark until the last batch of a plan."""


@dataclass(slots=True, frozen=True)
class Scheduling:
    """The site file's settings for jobs; the default is one project without quota."""

    projects: tuple[ProjectShare, ...] = (ProjectShare(DEFAULT_PROJECT),)
    named: bool = False
    """Whether the site file lists projects; then all others are refused."""
    max_priority: int = USERS_PRIORITY
    max_priorities: Mapping[str, int] = field(default_factory=dict)
    """Highest priority by project, for projects that set their own."""
    max_waiting: int = MAX_WAITING
    """Maximum waiting jobs of one project, which bounds storage, views and planning."""
    time_limit_action: TimeLimitAction = TimeLimitAction.IGNORE
    """For jobs that do not choose."""
    queue: QueuePolicy = field(default_factory=QueuePolicy)
    regroup: RegroupPolicy = field(default_factory=RegroupPolicy)
    search_nodes: int | None = None
    """Most nodes of one search by HiGHS; a site file leaves this to the time, a simulation not."""

    def highest_priority(self, project: str) -> int:
        """Return the highest priority that users may give jobs of ``project``."""
        return self.max_priorities.get(project, self.max_priority)


def scheduling_of(
    projects: list[ProjectModel], queue: QueueModel, regroup: RegroupModel
) -> Scheduling:
    """Convert checked sections to the scheduler's values; ``default`` always exists."""
    listed = tuple(ProjectShare(p.name, p.weight, p.quota) for p in projects)
    if DEFAULT_PROJECT not in {p.name for p in listed}:
        listed = (ProjectShare(DEFAULT_PROJECT), *listed)
    triggers = regroup.triggers
    threshold = triggers.threshold
    return Scheduling(
        projects=listed,
        named=bool(projects),
        max_priority=queue.max_priority,
        max_priorities={p.name: p.max_priority for p in projects if p.max_priority is not None},
        max_waiting=queue.max_waiting,
        time_limit_action=queue.time_limit_action,
        queue=QueuePolicy(
            **queue.model_dump(exclude={"max_priority", "max_waiting", "time_limit_action"})
        ),
        regroup=RegroupPolicy(
            budget=PauseBudget(regroup.cooldown_s, regroup.max_pauses_per_job_hour),
            triggers=TriggerPolicy(
                excess_span=threshold.excess_span if threshold else None,
                excess_for_s=threshold.for_s if threshold else 0.0,
                pending=triggers.pending,
                every_s=triggers.schedule.every_s,
                daily_at_s=tuple(_seconds(text) for text in triggers.schedule.daily_at),
                min_interval_s=triggers.min_interval_s,
            ),
            max_jobs_paused=regroup.max_jobs_paused,
            max_moves=regroup.max_moves,
            time_limit_s=regroup.time_limit_s,
            accept_open=regroup.worth == "possible",
            recovery_s=regroup.recovery_s,
            max_dark=regroup.max_dark,
            max_pauses=regroup.max_pauses,
            park=regroup.park,
            rates=SiteLinkRates(**regroup.rates.model_dump()) if regroup.rates else None,
        ),
    )


def _seconds(text: str) -> float:
    hours, minutes = text.split(":")
    return int(hours) * 3600.0 + int(minutes) * 60.0
