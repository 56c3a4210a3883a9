"""EASY backfill: reserves the start of the first waiting job and admits others before it.

Lifka, "The ANL/IBM SP scheduling system" (JSSPP 1995): a later job may start if it ends before
the reservation, or if it takes endpoints that the reservation does not need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler.model import Locality, Request, Wait
from scheduler.placement.apart import binding
from scheduler.placement.index import DARK, FabricIndex
from scheduler.placement.pool import Pool
from scheduler.queue.model import Pending


@dataclass(slots=True, frozen=True)
class Head:
    """The first waiting job, and why it waits."""

    job: Pending
    wait: Wait
    reserved_at: float
    """When it became the first."""
    promised: bool = False
    """Other jobs were stopped for it."""
    switch_wait_s: float = 0.0
    """For how long it waits for closer endpoints once it could start scattered."""
    could_start_at: float | None = None
    """Since when it could."""

    def latest_start(self, could_start: float) -> float:
        """Return when it starts at the latest if it can start, maybe scattered, at a time."""
        since = could_start if self.could_start_at is None else self.could_start_at
        return max(could_start, since + self.switch_wait_s)


@dataclass(slots=True)
class Reservation:
    """The reservation of the first waiting job; ``admits`` uses up its spare endpoints."""

    job: str
    pool: Pool
    start: float | None
    """When it begins; None if unknown."""
    spare: int
    """Endpoints of the pool that it does not need at ``start``."""
    aggregator: int | None
    """The aggregator of a job that needs exactly one; None for any."""
    spare_there: int
    closed: bool
    """No job passes it: it has been the first for too long, or others were stopped for it."""

    def may_admit(self, pool: Pool, count: int, end: float | None) -> bool:
        """Return whether ``admits`` could be true for some endpoints: a cheap check before it."""
        if pool is not self.pool or self.start is None:
            return True
        return (end is not None and end <= self.start) or count <= self.spare

    def admits(self, index: FabricIndex, chosen: Sequence[int], end: float | None) -> bool:
        """Return whether a job on ``chosen`` may start first; subtracts the spare ones it takes.

        ``end`` is its expected end, None if unknown. While the start of the reservation is
        unknown, every job may.
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

    ``ends`` gives (expected end, running job) in order of time; jobs past their end count
    as ending now. A strict job that fits under one aggregator waits for the first one with
    enough ports without a running job (idle endpoints are re-homed for free). ``start`` is
    the start if the caller knows it.
    """
    pool, count = index.pool(request), request.count
    least = pool.least.get((count, binding(request)), 0)
    alone = request.locality is Locality.STRICT and least == 1
    room = (index.ports - index.held).sum(axis=1) + pool.fixed if alone else None
    idle = pool.idle
    where: int | None = None
    for end, name in ends:
        job = index.jobs[name]
        members = pool.of([index.number[n] for n in (*job.endpoints, *job.spares)])
        freed = [e for e in members if e not in index.unavailable]
        idle += len(freed)
        if room is not None:
            for e in freed:
                if index.home[e] != DARK:
                    room[index.home[e]] += 1
        if idle >= request.pooled and (room is None or int(room.max()) >= count):
            start = max(end, now)
            break
    if start is not None and room is not None and int(room.max()) >= count:
        where = int(room.argmax())
    return Reservation(
        job=request.job,
        pool=pool,
        start=start,
        spare=idle - request.pooled,
        aggregator=where,
        spare_there=0 if where is None or room is None else int(room[where]) - count,
        closed=closed,
    )
