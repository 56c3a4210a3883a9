"""The values a queue decision takes and gives.

Times are seconds on the caller's clock; counts are endpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scheduler.model import Placement, Policy, Request

DEFAULT_PROJECT = "default"

PROMISE_S = 600.0
"""How long a job comes first after others were stopped for it, if it can not start at once."""


class Preemption(StrEnum):
    """Whose running jobs a pending job may push out."""

    OFF = "off"
    """Nobody's: the default."""
    PRIORITY = "priority"
    """Preemptible jobs of lower priority, when it is the first in the queue."""


@dataclass(slots=True, frozen=True)
class Project:
    """Who a job belongs to. Projects that are not named have these defaults."""

    name: str
    weight: float = 1.0
    """Share of the site relative to the other projects; above 0."""
    quota: int | None = None
    """Endpoints it may hold at once; None is no limit."""


@dataclass(slots=True, frozen=True)
class Promise:
    """Jobs were stopped so that a pending job can start: until it has, it comes first.

    Nothing else starts in its pool for ``PROMISE_S`` seconds, and nothing is stopped for it
    twice, so preemption ends whatever the ages and priorities are.
    """

    since: float
    stopped: frozenset[str]
    """Names of the jobs that were stopped for it."""

    def holds(self, now: float) -> bool:
        """Tell whether the job still comes first."""
        return now - self.since < PROMISE_S


@dataclass(slots=True, frozen=True)
class Pending:
    """A job in the queue."""

    request: Request
    submitted_at: float
    project: str = DEFAULT_PROJECT
    priority: int = 0
    """One level is worth ``QueuePolicy.aging_s`` seconds of waiting."""
    run_time_s: float | None = None
    """Expected run time, if somebody knows; only backfill uses it."""
    policy: Policy = Policy.PAUSE
    pinned: bool = False
    weight: float = 1.0
    preemptible: bool = False
    reserved_at: float | None = None
    """Since when it has been the first that waits (``Hold.reserved_at``), None when never."""
    promise: Promise | None = None
    """Set when jobs were stopped for it (``Preempt.promise``)."""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.request.job


@dataclass(slots=True, frozen=True)
class Running:
    """What the queue has to know of a running job; its endpoints stand in the fabric."""

    job: str
    project: str = DEFAULT_PROJECT
    priority: int = 0
    started_at: float = 0.0
    expected_end: float | None = None
    preemptible: bool = False


@dataclass(slots=True, frozen=True)
class Began:
    """A job that started, whether it still runs or not."""

    job: str
    submitted_at: float
    started_at: float
    project: str = DEFAULT_PROJECT
    priority: int = 0


@dataclass(slots=True, frozen=True)
class QueuePolicy:
    """How the queue decides.

    Order: a job for which others were stopped comes first; then the first job of each project
    that has waited ``patience_s`` or more while no earlier one of its project started, the
    longest wait first; then the projects take turns, the one that holds least for its weight
    first. Within a project the oldest job comes first. A level of priority makes a job
    ``aging_s`` older than it is, but only among the jobs of its project (of all projects
    without ``fair_share``).
    """

    fair_share: bool = True
    """Projects take turns; off: one queue for all."""
    backfill: bool = True
    """Later jobs may start when they do not delay the reservation of the first that waits."""
    backfill_depth: int = 100
    """Jobs looked at behind the first that waits."""
    aging_s: float = 3600.0
    patience_s: float = 6 * 3600.0
    """A project that had no turn for this long, though a job of it waits, comes before fair
    share with one job; and when the first in the queue has had a reservation for this long, no
    job passes it, whatever the expected run times."""
    make_room_moves: int = 0
    """Running endpoints that may be moved to make room for a strict job; 0 is never."""
    preemption: Preemption = Preemption.OFF


@dataclass(slots=True, frozen=True)
class Start:
    """Start this job now."""

    job: str
    placement: Placement
    backfilled: bool = False
    """It went past an earlier job without delaying that one's reservation."""


@dataclass(slots=True, frozen=True)
class MakeRoom:
    """Regroup, then start: few enough running endpoints are in this job's way."""

    job: str
    moves_needed: int
    """Running endpoints that have to move at least."""


@dataclass(slots=True, frozen=True)
class Preempt:
    """Stop and queue these jobs again, then this job fits."""

    job: str
    victims: tuple[str, ...]
    promise: Promise
    """Hand it back in ``Pending`` for as long as the job waits."""


@dataclass(slots=True, frozen=True)
class Hold:
    """This job waits: why, and what would have to happen."""

    job: str
    code: str
    """A code of ``scheduler.placement.place``, or ``quota`` (its project holds too much),
    ``reserved`` (it would delay the first that waits), ``not_reached`` (behind the depth
    that is looked at), ``behind`` (the first that waits lets nobody past)."""
    reason: str
    remedy: str
    reserved_at: float | None = None
    """Since when it has been the first that waits; hand it back in ``Pending``."""
    earliest_start: float | None = None
    """When the reservation begins, if all running jobs end as expected."""
    moves_needed: int | None = None
    """Running endpoints that a regroup would have to move to make it fit, if known."""


@dataclass(slots=True, frozen=True)
class Decisions:
    """What one look at the queue decides, in the order of the queue."""

    starts: tuple[Start, ...] = ()
    rooms: tuple[MakeRoom, ...] = ()
    preemptions: tuple[Preempt, ...] = ()
    holds: tuple[Hold, ...] = ()
