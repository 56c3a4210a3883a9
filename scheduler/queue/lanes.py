"""How pending jobs are kept: in lanes of equal shape, and by project."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import IntEnum

from scheduler.model import Request
from scheduler.placement.pool import Pool
from scheduler.queue.model import Pending, Project


class Precedence(IntEnum):
    """The classes of waiting jobs, in the order of the queue."""

    PROMISED = 0
    """Other jobs were stopped for it."""
    OVERDUE = 1
    """The first of its project, which had no turn for longer than the patience."""
    FAIR_SHARE = 2
    """Its project has to get the turn."""


Key = tuple[Precedence, float, int]
"""The class, a time and the order of submission.

The time is when the job would have come had it no priority; of an old job it is when it came.
"""


Shape = tuple[object, ...]
"""What jobs of one lane have in common."""


def shape_of(job: Pending) -> Shape:
    """Return the lane a job belongs to."""
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
    )


@dataclass(slots=True, eq=False)
class Lane:
    """Jobs of one project that differ in age and run time alone: they fit together or not."""

    key: Shape
    project: str
    shape: Request
    """The request of one of them."""
    pool: Pool
    keys: list[Key] = field(default_factory=list)
    jobs: list[Pending] = field(default_factory=list)
    """Parallel lists, in the order of the queue."""

    def insert(self, key: Key, job: Pending) -> None:
        """Put a job where its key belongs."""
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.jobs.insert(at, job)

    def remove(self, key: Key) -> Pending:
        """Take a job out."""
        at = bisect_left(self.keys, key)
        del self.keys[at]
        return self.jobs.pop(at)

    def first(self, precedence: Precedence) -> int:
        """Return the place of the first job of this class or a later one."""
        return bisect_left(self.keys, (precedence, float("-inf"), 0))


@dataclass(slots=True)
class Account:
    """What a project may hold and holds."""

    project: Project
    held: int = 0

    @property
    def share(self) -> float:
        """Endpoints it holds for its weight."""
        return self.held / self.project.weight

    def admits(self, count: int) -> bool:
        """Tell whether the quota leaves room for so many endpoints more."""
        return self.project.quota is None or self.held + count <= self.project.quota
