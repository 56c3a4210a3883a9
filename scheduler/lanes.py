"""How pending jobs are kept: in lanes of equal shape, and by project."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from scheduler.model import Request
from scheduler.pool import Pool
from scheduler.queue_model import Pending, Project

Key = tuple[float, int]
"""When a job would have come had it no priority, and the order of submission."""

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
    """Parallel lists, oldest first."""

    def insert(self, key: Key, job: Pending) -> None:
        """Put a job where its age belongs."""
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.jobs.insert(at, job)

    def remove(self, key: Key) -> Pending:
        """Take a job out."""
        at = bisect_left(self.keys, key)
        del self.keys[at]
        return self.jobs.pop(at)


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
