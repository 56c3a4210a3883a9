"""Keeps pending jobs in lanes of equal shape, and the accounts of projects."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from enum import IntEnum

from scheduler.model import Job, Placement, Request
from scheduler.placement.index import FabricIndex
from scheduler.placement.pool import EndpointPool
from scheduler.queue.model import Pending, ProjectShare


class Precedence(IntEnum):
    """Classes of waiting jobs, in the order of the queue."""

    PROMISED = 0
    """Other jobs were stopped for it."""
    OVERDUE = 1
    """The first job of a project that has started none for longer than the patience."""
    FAIR_SHARE = 2
    """It starts in the order of fair share."""


Key = tuple[Precedence, float, int]
"""The class, a time and the order of submission.

The time is the submission, less the head start of the priority; of an overdue job it is the
submission alone.
"""


Shape = tuple[object, ...]
"""The properties that all jobs of a lane share."""


def shape_of(job: Pending) -> Shape:
    """Return the key of the lane that a job belongs to."""
    r = job.request
    return (
        job.project,
        r.count,
        r.locality,
        r.rank_order,
        r.kind,
        r.model,
        r.min_memory_bytes,
        r.endpoints,
        r.volumes,
        r.avoid,
        r.spread,
        r.spares,
        r.spares_needed,
    )


def spares_beside(index: FabricIndex, request: Request) -> int:
    """Return the endpoints that may become spares beside named ones, as a bit set."""
    if not (request.endpoints and request.spares):
        return 0
    return index.pool(replace(request, endpoints=())).members & ~index.pool(request).members


def as_running(job: Pending, placement: Placement) -> Job:
    """Return a job as the fabric sees it once it runs."""
    return Job(
        job.name,
        placement.endpoints,
        job.policy,
        job.pinned,
        job.weight,
        job.request.spread,
        placement.spares,
    )


@dataclass(slots=True, eq=False)
class Lane:
    """Jobs of one project that differ only in age and run time: all of them fit, or none does."""

    key: Shape
    project: str
    shape: Request
    """The request of one of them."""
    pool: EndpointPool
    beside: int = 0
    """The endpoints that may become spares of jobs with named ones, as a bit set."""
    keys: list[Key] = field(default_factory=list)
    jobs: list[Pending] = field(default_factory=list)
    """Parallel lists, in the order of the queue."""

    @property
    def reach(self) -> int:
        """The endpoints that one of its jobs may take, as a bit set."""
        return self.pool.members | self.beside

    def update(self, index: FabricIndex) -> None:
        """Count the endpoints again that its jobs can use."""
        self.pool = index.pool(self.shape)
        self.beside = spares_beside(index, self.shape)

    def insert(self, key: Key, job: Pending) -> None:
        """Insert a job at the place of its key."""
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.jobs.insert(at, job)

    def remove(self, key: Key) -> Pending:
        """Remove and return a job."""
        at = bisect_left(self.keys, key)
        del self.keys[at]
        return self.jobs.pop(at)

    def first(self, precedence: Precedence) -> int:
        """Return the position of the first job of this class or a later one."""
        return bisect_left(self.keys, (precedence, float("-inf"), 0))


@dataclass(slots=True)
class ProjectUsage:
    """A project's limits and the endpoints it holds, spares included."""

    project: ProjectShare
    held: int = 0
    kept: int = 0
    """Endpoints of the quota that are kept for jobs that have led for the patience."""

    @property
    def share(self) -> float:
        """Endpoints it holds per weight."""
        return self.held / self.project.weight

    def admits(self, count: int) -> bool:
        """Return whether the quota allows ``count`` more endpoints beside those that are kept."""
        return self.project.quota is None or count <= self.room(self.project.quota)

    def room(self, quota: int) -> int:
        """Return how many more endpoints a quota allows."""
        return quota - self.held - self.kept
