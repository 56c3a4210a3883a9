"""EASY backfill: when the first job that waits can start, and who may go past it until then.

Lifka, "The ANL/IBM SP scheduling system" (JSSPP 1995): a later job may start if it ends before
the reservation, or if it takes endpoints that the reservation leaves over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler.model import Locality, Request, Wait
from scheduler.placement.index import DARK, FabricIndex
from scheduler.placement.pool import Pool
from scheduler.queue.model import Pending


@dataclass(slots=True, frozen=True)
class Head:
    """The first job that waits, and why."""

    job: Pending
    wait: Wait
    reserved_at: float
    """Since when it has been the first."""
    promised: bool = False
    """Other jobs were stopped for it."""


@dataclass(slots=True)
class Reservation:
    """The first job's claim on the future; ``admit`` uses up what it leaves over."""

    job: str
    pool: Pool
    start: float | None
    """When it begins; None when the expected ends do not tell."""
    spare: int
    """Endpoints of the pool that are left over at ``start``."""
    aggregator: int | None
    """Where a job that needs one aggregator will sit; None for anywhere."""
    spare_there: int
    closed: bool
    """No job passes: it has been the first for too long, or others were stopped for it."""

    def may_admit(self, pool: Pool, count: int, end: float | None) -> bool:
        """Tell whether ``admits`` could say yes, before it is known which endpoints."""
        if pool is not self.pool or self.start is None:
            return True
        return (end is not None and end <= self.start) or count <= self.spare

    def admits(self, index: FabricIndex, chosen: Sequence[int], end: float | None) -> bool:
        """Tell whether a job on ``chosen`` may go first; books the spare endpoints it takes.

        ``end`` is when it ends, None when nobody knows. While the start of the reservation
        itself is unknown everybody may.
        """
        mine = self.pool.of(chosen)
        if not mine:
            return True
        if self.closed:
            return False
        if self.start is None or (end is not None and end <= self.start):
            return True
        there = sum(index.home[e] == self.aggregator for e in mine)
        if len(mine) > self.spare or (self.aggregator is not None and there > self.spare_there):
            return False
        self.spare -= len(mine)
        self.spare_there -= there
        return True


def reserve(
    index: FabricIndex,
    request: Request,
    ends: Iterable[tuple[float, str]],
    now: float,
    *,
    closed: bool,
    start: float | None = None,
) -> Reservation:
    """Return the earliest start of a request that does not fit now.

    ``ends`` gives (expected end, running job) in order of time; jobs past their end are
    taken to end now. A strict job that fits under one aggregator waits for the first one
    with enough ports that no running job takes (idle endpoints are re-homed for free).
    ``start`` is the answer where the caller knows it.
    """
    pool, count = index.pool(request), request.count
    least = pool.least.get(count, 0)
    alone = request.locality is Locality.STRICT and least == 1
    room = (index.ports - index.held).sum(axis=1) + pool.fixed if alone else None
    idle = pool.idle
    where: int | None = None
    for end, name in ends:
        members = pool.of([index.number[n] for n in index.jobs[name].endpoints])
        freed = [e for e in members if e not in index.unavailable]
        idle += len(freed)
        if room is not None:
            for e in freed:
                if index.home[e] != DARK:
                    room[index.home[e]] += 1
        if idle >= count and (room is None or int(room.max()) >= count):
            start = max(end, now)
            break
    if start is not None and room is not None and int(room.max()) >= count:
        where = int(room.argmax())
    return Reservation(
        job=request.job,
        pool=pool,
        start=start,
        spare=idle - count,
        aggregator=where,
        spare_there=0 if where is None or room is None else int(room[where]) - count,
        closed=closed,
    )
