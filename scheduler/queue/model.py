"""Defines the input and output of queue decisions.

Times are seconds on the caller's clock; counts are endpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scheduler.model import Placement, Policy, Request

DEFAULT_PROJECT = "default"

PROMISE_S = 600.0
"""Seconds for which a job comes first after others were stopped for it."""


class Preemption(StrEnum):
    """Which running jobs are stopped for a pending job."""

    OFF = "off"
    """None: the default."""
    PRIORITY = "priority"
    """Preemptible jobs of lower priority, if no first waiting job before the pending one can use
    its endpoints."""


@dataclass(slots=True, frozen=True)
class ProjectShare:
    """The owner of jobs. Projects without a definition have these defaults."""

    name: str
    weight: float = 1.0
    """Share of the site relative to other projects; above 0."""
    quota: int | None = None
    """Endpoints it may hold at once, spares included; None is unlimited."""


@dataclass(slots=True, frozen=True)
class Promise:
    """Jobs were stopped so that a pending job can start: until it has started, it comes first.

    No other job starts in its pool for ``PROMISE_S`` seconds, and no job is stopped for it
    twice, so preemption ends for all ages and priorities.
    """

    since: float
    stopped: frozenset[str]
    """Names of the jobs that were stopped for it."""

    def holds(self, now: float) -> bool:
        """Return whether the job still comes first."""
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
    """Expected run time, if known; only backfill uses it."""
    policy: Policy = Policy.PAUSE
    pinned: bool = False
    weight: float = 1.0
    preemptible: bool = False
    reserved_at: float | None = None
    """Since when it is the first waiting job (``QueueHold.reserved_at``), None if it is not."""
    could_start_at: float | None = None
    """Since when it waits only for closer endpoints (``QueueHold.could_start_at``)."""
    promise: Promise | None = None
    """Set if jobs were stopped for it (``Preempt.promise``)."""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.request.job


@dataclass(slots=True, frozen=True)
class RunningJob:
    """A running job as the queue sees it; its endpoints are in the fabric."""

    job: str
    project: str = DEFAULT_PROJECT
    priority: int = 0
    started_at: float = 0.0
    expected_end: float | None = None
    preemptible: bool = False


@dataclass(slots=True, frozen=True)
class StartedJob:
    """A job that has started; it may have ended."""

    job: str
    submitted_at: float
    started_at: float
    project: str = DEFAULT_PROJECT
    priority: int = 0
    request: Request | None = None
    """What it needed; None counts as a start on any endpoints."""


@dataclass(slots=True, frozen=True)
class QueuePolicy:
    """How the queue decides.

    A *pool* is the set of endpoints that a job can use. Order: jobs for which others were stopped
    come first; then, the longest wait first, jobs that have led their pool for ``patience_s``
    and the first job of each project and pool that has waited as long while no earlier one of its
    project started on endpoints of that pool; then the projects in order of the endpoints they
    hold per weight, the fewest first. Within a project the oldest job comes first. A level of
    priority counts as ``aging_s`` seconds of age, but only among the jobs of its project
    (without ``fair_share``, among all jobs).
    """

    fair_share: bool = True
    """Projects share the site by weight; off: one queue for all."""
    backfill: bool = True
    """Later jobs may start if they do not delay the reservations of the first waiting jobs of the
    pools whose endpoints they can use."""
    backfill_depth: int = 100
    """Jobs considered behind the first waiting jobs."""
    aging_s: float = 3600.0
    patience_s: float = 6 * 3600.0
    """A project with a waiting job that has started none for this long comes before fair share
    with one job of each pool; and when the first waiting job of a pool has had a reservation for
    this long, no job passes it, on its endpoints or within its project's quota. The same holds
    for the first job of a project that waits for its quota."""
    switch_wait_s: float = 3600.0
    """On a site with several optical switches, for how long a first waiting job waits for
    endpoints that a regroup can bring closer together, from when it could start scattered (locality
    regroup only); 0 is never."""
    make_room_moves: int = 0
    """Endpoints of running jobs that may be moved to make room for a strict job; 0 forbids it."""
    preemption: Preemption = Preemption.OFF


@dataclass(slots=True, frozen=True)
class Start:
    """Start this job now."""

    job: str
    placement: Placement
    backfilled: bool = False
    """It started before an earlier job that can use its endpoints, and does not delay it."""


@dataclass(slots=True, frozen=True)
class MakeRoom:
    """Regroup so that this job can start: few enough endpoints of running jobs must move."""

    job: str
    moves_needed: int
    """Lower bound on the endpoints of running jobs that must move."""


@dataclass(slots=True, frozen=True)
class Preempt:
    """Stop these jobs and queue them again; then this job fits."""

    job: str
    victims: tuple[str, ...]
    promise: Promise
    """Pass it in ``Pending`` while the job waits."""


@dataclass(slots=True, frozen=True)
class QueueHold:
    """This job waits: the reason and a remedy."""

    job: str
    code: str
    """A code of ``scheduler.placement.place``, or ``quota`` (its project holds too much),
    ``switches`` (no regroup brings the endpoints together on which it could start), ``reserved``
    (it would delay a first waiting job), ``not_reached`` (beyond
    ``QueuePolicy.backfill_depth``), ``behind`` (no job may pass a first waiting job)."""
    reason: str
    remedy: str
    reserved_at: float | None = None
    """Since when it is the first waiting job of its pool or quota; pass it in ``Pending``."""
    could_start_at: float | None = None
    """Since when it could start, but waits for closer endpoints; pass it in ``Pending``."""
    earliest_start: float | None = None
    """When the reservation begins, if all running jobs end as expected."""
    moves_needed: int | None = None
    """Endpoints of running jobs that a regroup would have to move to make it fit, if known."""


@dataclass(slots=True, frozen=True)
class Decisions:
    """The decisions of one round, in the order of the queue."""

    starts: tuple[Start, ...] = ()
    rooms: tuple[MakeRoom, ...] = ()
    preemptions: tuple[Preempt, ...] = ()
    holds: tuple[QueueHold, ...] = ()
