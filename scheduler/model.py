"""Defines the scheduler's values: site, fabric, job, request, plan.

Everything here is frozen. A *site* is what is cabled; a *fabric* is a site plus
its state at one moment (homes, jobs, quarantine). Only counts of aggregator ports
per optical switch matter to a plan: the controller selects among equal ports when it
turns a plan into circuits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Slot = tuple[str, str]
"""An aggregator and an optical switch: the ports between them are interchangeable."""


class Locality(StrEnum):
    """The locality that a job requires of its placement."""

    STRICT = "strict"
    """Least possible span now; the job waits otherwise."""
    PREFERRED = "preferred"
    """Least span that the present homes allow."""
    ANY = "any"
    """Topology-blind: spread over servers, as by a scheduler without a model of the fabric."""
    REGROUP = "regroup"
    """Least possible span; idle endpoints are re-homed before the job starts."""


class Policy(StrEnum):
    """How a running job is treated while its light is moved."""

    LIVE = "live"
    """Keeps running through the dark time."""
    PAUSE = "pause"
    """All containers are frozen together for the dark time."""
    RESTART = "restart"
    """Checkpoints, stops and starts again."""


class RankOrder(StrEnum):
    """How endpoints are ordered as ranks of the ring."""

    AGGREGATOR = "aggregator"
    """Sorted by home, so that the ring crosses between aggregators as rarely as possible."""
    PLACED = "placed"
    """In the order in which placement selected them, as in topology-blind systems."""


class Objective(StrEnum):
    """Second criterion of a regroup, after excess span."""

    PAUSES = "pauses"
    MOVES = "moves"


class TimeLimitAction(StrEnum):
    """What happens to a job at its time limit."""

    END = "end"
    """It is ended, so that what the queue promised to others holds."""
    IGNORE = "ignore"
    """Nothing: the limit is an estimate."""


class OnLoss(StrEnum):
    """What a job does that lost endpoints that no spare replaces."""

    WAIT = "wait"
    """It waits in the queue for as many endpoints as before."""
    SHRINK = "shrink"
    """It goes on with those that are left, if its checkpoint can be loaded by fewer ranks."""


class SpreadBy(StrEnum):
    """What a job's endpoints are spread over."""

    SERVER = "server"
    AGGREGATOR = "aggregator"
    """Over aggregators, and over servers as well."""


@dataclass(slots=True, frozen=True)
class Spread:
    """At most ``most`` (>= 1) of a job's endpoints share a server (or an aggregator).

    It keeps copies of checkpoints apart: half the ranks for partners, one per set for XOR.
    Dark endpoints share no aggregator.
    """

    by: SpreadBy
    most: int


@dataclass(slots=True, frozen=True)
class Endpoint:
    """One schedulable resource with its own NIC port and fiber.

    Exactly one of ``ocs`` (its optical switch) and ``fixed`` (the aggregator it is
    hard-wired to) is set.
    """

    name: str
    ocs: str | None = None
    fixed: str | None = None
    server: str = ""
    kind: str = "gpu"
    model: str = ""
    memory_bytes: int = 0
    volumes: frozenset[str] = frozenset()
    """Volumes that jobs can use on its server now."""


@dataclass(slots=True, frozen=True)
class Aggregator:
    """Electrical packet switch; ``ports`` counts its ports per optical switch."""

    name: str
    ports: Mapping[str, int]
    fixed_ports: int = 0
    """Ports that hard-wired endpoints occupy; they are never free."""

    @property
    def size(self) -> int:
        """All endpoint-facing ports, optical and fixed."""
        return sum(self.ports.values()) + self.fixed_ports


@dataclass(slots=True, frozen=True)
class Site:
    """The installed hardware and its cabling, in the order of the site file."""

    name: str
    endpoints: tuple[Endpoint, ...]
    aggregators: tuple[Aggregator, ...]


@dataclass(slots=True, frozen=True)
class Job:
    """A running job as the planner sees it: ``endpoints`` in rank order."""

    name: str
    endpoints: tuple[str, ...]
    policy: Policy = Policy.PAUSE
    pinned: bool = False
    weight: float = 1.0
    spread: Spread | None = None
    """What every plan must keep true of it."""
    spares: tuple[str, ...] = ()
    """Endpoints reserved for it; they are in ``Fabric.unavailable`` until it ends."""


@dataclass(slots=True, frozen=True)
class Fabric:
    """A site at one moment. ``homes`` names each endpoint's aggregator, None when dark."""

    site: Site
    homes: Mapping[str, str | None]
    jobs: tuple[Job, ...] = ()
    unavailable: frozenset[str] = frozenset()
    """Endpoints that must be neither placed nor moved (quarantine, lost server)."""
    epoch: int = 0
    search_nodes: int | None = None
    """Most nodes of one search by HiGHS, whose result then depends on no machine's speed; None
    bounds it by time."""
    held_ports: Mapping[Slot, int] = field(default_factory=dict)
    """Ports without an endpoint where none can be lit: out of use, reserved, or in other use."""

    def idle(self) -> tuple[Endpoint, ...]:
        """Endpoints that hold no job and are available, in site order."""
        busy = {name for job in self.jobs for name in job.endpoints} | self.unavailable
        return tuple(e for e in self.site.endpoints if e.name not in busy)


@dataclass(slots=True, frozen=True)
class Request:
    """The resources that a submitted job requests. ``endpoints`` names the exact set if given."""

    job: str
    count: int
    locality: Locality = Locality.PREFERRED
    rank_order: RankOrder = RankOrder.AGGREGATOR
    kind: str = "gpu"
    model: str | None = None
    min_memory_bytes: int = 0
    endpoints: tuple[str, ...] = ()
    volumes: frozenset[str] = frozenset()
    """Volumes that every endpoint's server must have."""
    avoid: frozenset[str] = frozenset()
    """Endpoints that it does not use now: its start failed there."""
    spread: Spread | None = None
    spares: int = 0
    """Idle endpoints reserved beside it, on whose light a dead endpoint's place can move."""
    spares_needed: bool = True
    """It waits for its spares; False starts with the spares available."""

    @property
    def needed(self) -> int:
        """Endpoints without which it waits."""
        return self.count + (self.spares if self.spares_needed else 0)

    @property
    def pooled(self) -> int:
        """Those of them that match it; beside named endpoints its spares are others."""
        return self.count if self.endpoints else self.needed


@dataclass(slots=True, frozen=True)
class Move:
    """A change of one endpoint's home; None is dark."""

    endpoint: str
    source: str | None
    target: str | None


@dataclass(slots=True, frozen=True)
class Placement:
    """The endpoints a job gets, in rank order, and the moves of idle endpoints to make first."""

    job: str
    endpoints: tuple[str, ...]
    moves: tuple[Move, ...] = ()
    span: int = 1
    span_possible: int = 1
    """Lower bound on the span that a regroup can reach for these endpoints."""
    spares: tuple[str, ...] = ()
    """Idle endpoints reserved for the job."""


@dataclass(slots=True, frozen=True)
class Wait:
    """The job cannot run now; ``reason`` is for users, ``code`` for programs."""

    job: str
    code: str
    reason: str
    moves_needed: int | None = None
    """Endpoints of running jobs that a regroup would have to move to make it fit, if known."""


@dataclass(slots=True, frozen=True)
class Limits:
    """Budgets of one regroup; None is unlimited."""

    objective: Objective = Objective.PAUSES
    max_jobs_paused: int | None = None
    max_moves: int | None = None
    time_limit_s: float = 10.0
    only_job: str | None = None
    """Lower only this job's excess span (others may still be moved)."""


@dataclass(slots=True, frozen=True)
class Bound:
    """Proven lower bounds: no plan is better in lexicographic order."""

    excess_span: float
    running_moves: float
    paused_gpus: float


@dataclass(slots=True, frozen=True)
class Plan:
    """A regroup. ``homes_after`` covers every endpoint; ``moves`` is the difference."""

    moves: tuple[Move, ...]
    homes_after: Mapping[str, str | None]
    excess_span_before: int
    excess_span_after: int
    running_moves: int
    jobs_paused: tuple[str, ...]
    paused_gpus: int
    pause_gpu_seconds: float
    bound: Bound
    optimal: bool
    solver_seconds: float = field(default=0.0, compare=False)
    epoch: int = 0
    """Revision of the fabric that the plan is for; checked again at apply."""

    @property
    def empty(self) -> bool:
        """True when no move gains anything."""
        return not self.moves
