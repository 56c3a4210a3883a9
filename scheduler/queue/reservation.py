"""EASY backfill: reserves the starts of the first waiting jobs and admits others before them.

Every pool of endpoints that jobs can use has a first waiting job of its own. Lifka, "The ANL/IBM
SP scheduling system" (JSSPP 1995): a later job may start if it ends before the reservation, or if
it takes endpoints that the reservation does not need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler.model import Locality, Wait
from scheduler.placement.apart import binding
from scheduler.placement.index import DARK, FabricIndex
from scheduler.placement.pool import EndpointPool
from scheduler.queue.model import Pending


@dataclass(slots=True, frozen=True)
class Head:
    """The first waiting job of a pool, and why it waits."""

    job: Pending
    wait: Wait
    pool: EndpointPool
    reserved_at: float
    """When it became the first."""
    ahead: tuple[Head, ...] = ()
    """First jobs of other pools that come before it and can use endpoints of its pool."""
    promised: bool = False
    """Other jobs were stopped for it."""
    closed: bool = False
    """No job passes it: it has been the first for too long, or others were stopped for it."""
    makes_room: bool = False
    """A regroup makes room for it now."""
    switch_wait_s: float = 0.0
    """For how long it waits for closer endpoints once it could start scattered."""
    could_start_at: float | None = None
    """Since when it could."""
    beside: int = 0
    """The endpoints of which it needs spares beside those of its pool, as a bit set."""

    @property
    def reach(self) -> int:
        """The endpoints that it needs or of which it needs some, as a bit set."""
        return self.pool.members | self.beside

    @property
    def spares(self) -> int:
        """How many of ``beside`` it needs."""
        return self.job.request.needed - self.job.request.pooled

    def needs_of(self, members: int) -> int:
        """Return how many of some endpoints it may need."""
        return min(self.job.request.needed, (self.reach & members).bit_count())

    def latest_start(self, could_start: float) -> float:
        """Return when it starts at the latest if it can start, maybe scattered, at a time."""
        since = could_start if self.could_start_at is None else self.could_start_at
        return max(could_start, since + self.switch_wait_s)

    def covers(self, pool: EndpointPool) -> bool:
        """Return whether it can use all endpoints of a pool."""
        return pool.members & ~self.pool.members == 0


@dataclass(slots=True)
class Reservation:
    """The reservation of a first waiting job; ``subtract`` uses up its spare endpoints."""

    pool: EndpointPool
    start: float | None
    """When it begins; None if unknown."""
    spare: int
    """Endpoints of the pool that it does not need at ``start``."""
    aggregator: int | None
    """The aggregator of a job that needs exactly one; None for any."""
    spare_there: int
    closed: bool
    """No job passes it."""
    beside: int = 0
    """The endpoints of which it needs spares beside its pool, as a bit set."""
    spare_beside: int = 0
    """Those of them that it does not need: at ``start``; now, if no job passes it."""

    def may_admit(self, count: int, end: float | None) -> bool:
        """Return whether ``admits`` could be true: a cheap check of a job that uses its pool."""
        return self._in_time(end) or count <= self.spare

    def admits(self, index: FabricIndex, chosen: Sequence[int], end: float | None) -> bool:
        """Return whether a job on ``chosen`` may start first.

        ``end`` is its expected end, None if unknown. While the start of the reservation is
        unknown, every job may.
        """
        mine, beside = self.pool.of(chosen), _count(self.beside, chosen)
        in_time = self._in_time(end) and not self.closed
        if beside > self.spare_beside and not in_time:
            return False
        if not mine or in_time:
            return True
        if self.closed:
            return False
        there = sum(index.home[e] == self.aggregator for e in mine)
        return len(mine) <= self.spare and (self.aggregator is None or there <= self.spare_there)

    def subtract(self, index: FabricIndex, chosen: Sequence[int], end: float | None) -> None:
        """Subtract the spare endpoints that an admitted job uses."""
        if self.closed or not self._in_time(end):
            self.spare_beside -= _count(self.beside, chosen)
            mine = self.pool.of(chosen)
            self.spare -= len(mine)
            self.spare_there -= sum(index.home[e] == self.aggregator for e in mine)

    def _in_time(self, end: float | None) -> bool:
        return self.start is None or (end is not None and end <= self.start)


def reserve(
    index: FabricIndex,
    head: Head,
    ends: Iterable[tuple[float, str]],
    now: float,
    *,
    start: float | None = None,
) -> Reservation:
    """Return the earliest start of a first job, which does not fit now.

    ``ends`` gives (expected end, running job) in order of time; jobs past their end count
    as ending now. A strict job that fits under one aggregator waits for the first one with
    enough ports without a running job (idle endpoints are re-homed for free). What jobs before
    it need of its endpoints is theirs. ``start`` is the start if the caller has it.
    """
    request = head.job.request
    pool, count = index.pool(request), request.count
    kept = sum(one.needs_of(pool.members) for one in head.ahead)
    least = pool.least.get((count, binding(request)), 0)
    alone = request.locality is Locality.STRICT and least == 1
    room = (index.ports - index.held).sum(axis=1) + pool.fixed if alone else None
    idle = pool.idle
    beside = _idle(index, head.beside)
    needed_beside = head.spares + sum(one.needs_of(head.beside) for one in head.ahead)
    spare_now = beside - needed_beside
    where: int | None = None
    for end, name in ends:
        job = index.jobs[name]
        members = [index.number[n] for n in (*job.endpoints, *job.spares)]
        ready = [e for e in members if e not in index.unavailable]
        freed = pool.of(ready)
        idle += len(freed)
        beside += _count(head.beside, ready)
        if room is not None:
            for e in freed:
                if index.home[e] != DARK:
                    room[index.home[e]] += 1
        fits = idle >= request.pooled + kept and beside >= needed_beside
        if fits and (room is None or int(room.max()) >= count):
            start = max(end, now)
            break
    if start is not None and room is not None and int(room.max()) >= count:
        where = int(room.argmax())
    return Reservation(
        pool=pool,
        start=start,
        spare=idle - request.pooled - kept,
        aggregator=where,
        spare_there=0 if where is None or room is None else int(room[where]) - count,
        closed=head.closed,
        beside=head.beside,
        spare_beside=spare_now if head.closed else beside - needed_beside,
    )


def _count(members: int, endpoints: Iterable[int]) -> int:
    """Return how many of some endpoints are in a bit set."""
    return sum(members >> e & 1 for e in endpoints) if members else 0


def _idle(index: FabricIndex, members: int) -> int:
    """Return the idle endpoints in a bit set."""
    return _count(members, (e for e in range(index.size) if index.is_idle(e))) if members else 0
