"""The sections of a site file that say who may have how much, and when light moves by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from scheduler.policy.budgets import PauseBudget
from scheduler.policy.triggers import TriggerPolicy
from scheduler.queue.model import DEFAULT_PROJECT, Preemption, Project, QueuePolicy

USERS_PRIORITY = 5
"""Highest priority of users' jobs, where the site file says nothing else."""
MAX_WAITING = 200

Priority = Annotated[int, Field(ge=-100, le=100)]
ProjectName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")]
"""Jobs are called ``<project>-…``, and agents take at most 41 characters."""
TimeOfDay = Annotated[str, StringConstraints(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ProjectModel(_Strict):
    """A project as scheduling input: its share and its quota."""

    name: ProjectName
    weight: Annotated[float, Field(gt=0)] = 1.0
    quota: Annotated[int, Field(ge=0)] | None = Field(
        None, description="endpoints it may hold at once; no limit when absent"
    )
    max_priority: Priority | None = Field(
        None, description="of its users' jobs; queue.max_priority when absent"
    )


class QueueModel(_Strict):
    """How the queue decides; see docs/scheduling.md."""

    fair_share: bool = True
    backfill: bool = True
    backfill_depth: Annotated[int, Field(ge=0)] = 100
    aging_s: Annotated[float, Field(gt=0)] = 3600.0
    patience_s: Annotated[float, Field(ge=0)] = 6 * 3600.0
    preemption: Preemption = Field(
        Preemption.OFF, description="priority: jobs that may be stopped make way for higher ones"
    )
    max_priority: Priority = Field(
        USERS_PRIORITY, description="of users' jobs; operators and admins may exceed it"
    )
    max_waiting: Annotated[int, Field(ge=1, le=10_000)] = Field(
        MAX_WAITING, description="jobs of one project that may wait at once"
    )


class ThresholdModel(_Strict):
    """Look for a regroup when running jobs are scattered for a while."""

    excess_span: Annotated[int, Field(ge=1)]
    for_s: Annotated[float, Field(ge=0)] = 60.0


class ScheduleModel(_Strict):
    """Look for a regroup by the clock."""

    every_s: Annotated[float, Field(gt=0)] | None = None
    daily_at: list[TimeOfDay] = Field([], description="HH:MM in UTC")


class TriggersModel(_Strict):
    """Regroups nobody asked for; every trigger is off unless it stands here."""

    threshold: ThresholdModel | None = None
    pending: bool = Field(False, description="a job waits that a regroup would let in")
    schedule: ScheduleModel = ScheduleModel()
    min_interval_s: Annotated[float, Field(ge=0)] = 300.0


class RatesModel(_Strict):
    """Link rates of a real site; predictions of gain need them."""

    access_bps: Annotated[float, Field(gt=0)]
    inter_aggregator_bps: Annotated[float, Field(gt=0)]


class RegroupModel(_Strict):
    """Budgets of every regroup, and the triggers of the automatic ones."""

    cooldown_s: Annotated[float, Field(ge=0)] = 0.0
    max_pauses_per_job_hour: Annotated[float, Field(ge=0)] | None = None
    max_jobs_paused: Annotated[int, Field(ge=0)] | None = Field(
        None, description="of one regroup that a trigger starts"
    )
    max_moves: Annotated[int, Field(ge=0)] | None = Field(
        None, description="of one regroup that a trigger starts"
    )
    time_limit_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    worth: Literal["proven", "possible"] = Field(
        "possible", description="gain that a regroup needs which nobody asked for"
    )
    recovery_s: Annotated[float, Field(ge=0)] = Field(
        0.5, description="until a job's transport runs again after its dark time"
    )
    rates: RatesModel | None = None
    triggers: TriggersModel = TriggersModel()


@dataclass(slots=True, frozen=True)
class Rates:
    """Link rates in bit/s."""

    access_bps: float
    inter_aggregator_bps: float


@dataclass(slots=True, frozen=True)
class RegroupPolicy:
    """When light moves, and how often."""

    budget: PauseBudget = field(default_factory=PauseBudget)
    triggers: TriggerPolicy = field(default_factory=TriggerPolicy)
    max_jobs_paused: int | None = None
    max_moves: int | None = None
    time_limit_s: float = 10.0
    accept_open: bool = True
    """A triggered regroup is carried out also when its worth is open."""
    recovery_s: float = 0.5
    rates: Rates | None = None


@dataclass(slots=True, frozen=True)
class Scheduling:
    """What the site file says about jobs; without a word there is one project without quota."""

    projects: tuple[Project, ...] = (Project(DEFAULT_PROJECT),)
    named: bool = False
    """Projects are listed: others are refused."""
    max_priority: int = USERS_PRIORITY
    max_priorities: Mapping[str, int] = field(default_factory=dict)
    """Of the projects that have one of their own."""
    max_waiting: int = MAX_WAITING
    """Jobs of one project that may wait at once: what waits is kept, shown and planned for."""
    queue: QueuePolicy = field(default_factory=QueuePolicy)
    regroup: RegroupPolicy = field(default_factory=RegroupPolicy)

    def highest_priority(self, project: str) -> int:
        """Return the highest priority that users may give jobs of ``project``."""
        return self.max_priorities.get(project, self.max_priority)


def scheduling_of(
    projects: list[ProjectModel], queue: QueueModel, regroup: RegroupModel
) -> Scheduling:
    """Turn checked sections into the scheduler's values; ``default`` always exists."""
    listed = tuple(Project(p.name, p.weight, p.quota) for p in projects)
    if DEFAULT_PROJECT not in {p.name for p in listed}:
        listed = (Project(DEFAULT_PROJECT), *listed)
    triggers = regroup.triggers
    threshold = triggers.threshold
    return Scheduling(
        projects=listed,
        named=bool(projects),
        max_priority=queue.max_priority,
        max_priorities={p.name: p.max_priority for p in projects if p.max_priority is not None},
        max_waiting=queue.max_waiting,
        queue=QueuePolicy(**queue.model_dump(exclude={"max_priority", "max_waiting"})),
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
            rates=Rates(**regroup.rates.model_dump()) if regroup.rates else None,
        ),
    )


def _seconds(text: str) -> float:
    hours, minutes = text.split(":")
    return int(hours) * 3600.0 + int(minutes) * 60.0
