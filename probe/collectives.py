"""Times collectives point by point as nccl-tests does, over any framework.

t is the time of n back-to-back operations divided by n, after a warm-up; each rank prints its own
and the controller forms mean, least and largest over ranks. Successive operations walk through
offsets of a larger array, so that none finds its data in a cache. One more operation on small
integers, whose sums are exact in float32, counts wrong elements.

All ranks do the same number of operations: whatever depends on a clock is agreed between them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from probe import common

VALUES = 8
"""Elements that are verified are integers from 0 to this, exclusive."""
WARM_UP_SHARE = 0.2
"""Largest share of a point's time for its warm-up."""


class UnsupportedError(Exception):
    """The framework does not have the operation on this backend."""


@dataclass(slots=True, frozen=True)
class CollectivePoint:
    """One operation on one size. ``count`` is nccl-tests': of a rank's part if it splits."""

    operation: str
    size: int
    count: int


@dataclass(slots=True, frozen=True)
class CollectivesPlan:
    """What to time. All groups have the same number of points and measure them side by side."""

    groups: Sequence[Sequence[int]]
    """Ranks of each group."""
    points: Sequence[Sequence[CollectivePoint]]
    """Points of each group."""
    iterations: int
    repetitions: int
    warm_up: int
    point_s: float
    """Longest time of one point, unless one operation a repetition takes longer."""
    check: bool
    timeout_s: float
    """Longest wait inside one operation."""

    @property
    def largest(self) -> int:
        """Bytes of the largest array."""
        return max(point.size for points in self.points for point in points)

    def group_of(self, rank: int) -> int:
        """Return the group of a rank. Raises ValueError for a rank in none."""
        for number, ranks in enumerate(self.groups):
            if rank in ranks:
                return number
        raise ValueError(f"rank {rank} is in no group of the plan")


class Backend(Protocol):
    """A framework's collectives, inside this rank's group unless named ``all``."""

    note: str

    def prepare(self, point: CollectivePoint) -> Callable[[int], None]:
        """Return what starts the i-th operation of a point. Raises UnsupportedError."""
        ...

    def finish(self) -> None:
        """Wait until all operations that were started are complete."""
        ...

    def barrier(self) -> None:
        """Wait for all ranks of all groups."""
        ...

    def mean(self, value: float) -> float:
        """Return the mean of a value over all ranks of all groups."""
        ...

    def wrong(self, point: CollectivePoint, seed: int) -> int:
        """Run one operation on known values and return this rank's wrong elements."""
        ...


def read_plan(text: str) -> CollectivesPlan:
    """Parse the plan in a command's argument; groups of one size share their points.

    Raises ValueError, KeyError or TypeError."""
    document: dict[str, Any] = json.loads(text)
    groups = [[int(rank) for rank in ranks] for ranks in document["groups"]]
    return CollectivesPlan(
        groups=groups,
        points=[
            [
                CollectivePoint(str(operation), int(size), int(count))
                for operation, size, count in document["points"][str(len(ranks))]
            ]
            for ranks in groups
        ],
        iterations=int(document["iterations"]),
        repetitions=int(document["repetitions"]),
        warm_up=int(document["warm_up"]),
        point_s=float(document["point_s"]),
        check=bool(document["check"]),
        timeout_s=float(document["timeout_s"]),
    )


def time_all(backend: Backend, plan: CollectivesPlan, rank: int) -> None:
    """Time every point of this rank's group and print a line for each."""
    group = plan.group_of(rank)
    for number, point in enumerate(plan.points[group]):
        backend.barrier()
        fields: dict[str, Any] = {}
        try:
            iterations, times = _time(backend, plan, point)
            fields = {"iterations": iterations, "times_s": [round(t, 9) for t in times]}
            if plan.check:
                fields["wrong"] = backend.wrong(point, number)
        except UnsupportedError as error:
            fields = {"reason": str(error)[:300]}
        common.emit(
            "collective",
            group=group,
            operation=point.operation,
            size=point.size,
            count=point.count,
            note=backend.note,
            **fields,
        )


def _time(
    backend: Backend, plan: CollectivesPlan, point: CollectivePoint
) -> tuple[int, list[float]]:
    """Return the operations of a repetition, and seconds of an operation in each repetition."""
    run = backend.prepare(point)
    once = backend.mean(_seconds(backend, run, 1))
    again = min(plan.warm_up - 1, int(plan.point_s * WARM_UP_SHARE / max(once, 1e-9)))
    if again > 0:
        once = backend.mean(_seconds(backend, run, again))
    budget = plan.point_s * (1 - WARM_UP_SHARE) / plan.repetitions
    iterations = max(1, min(plan.iterations, int(budget / max(once, 1e-9))))
    times = []
    for _ in range(plan.repetitions):
        backend.barrier()
        times.append(_seconds(backend, run, iterations))
    return iterations, times


def _seconds(backend: Backend, run: Callable[[int], None], count: int) -> float:
    begin = time.perf_counter()
    for number in range(count):
        run(number)
    backend.finish()
    return (time.perf_counter() - begin) / count


def in_thread(work: Callable[[], None]) -> None:
    """Run ``work`` beside the main thread, which stays in Python to handle SIGTERM.

    A handler in Python does not run while the main thread waits inside a collective.
    """
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # handed on to the main thread
            failed.append(error)

    thread = threading.Thread(target=guarded, name="collectives", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)
    if failed:
        raise failed[0]
