"""Selects idle endpoints for a job: spread, by best fit, or with moves of idle endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from scheduler.placement.index import DARK, FabricIndex
from scheduler.placement.pool import EndpointPool, Ints

_ENUMERATE_UP_TO = 2000
"""Sets of aggregators that are enumerated; beyond, the largest are taken greedily."""

_TIES_UP_TO = 64
"""Equally tight aggregators of which the one with most candidates is selected."""


def spread_blindly(index: FabricIndex, pool: EndpointPool, count: int) -> list[int]:
    """Select as a scheduler without a model of the fabric: one at a time, emptiest server first.

    Each pick goes to the server with the most free endpoints, ties in site order: the
    least-allocated scoring of the default Kubernetes scheduler.
    """
    servers = index.servers(pool)
    chosen: list[int] = []
    rest: dict[int, list[int]] = {}
    for _ in range(count):
        server = servers.fullest()
        if server not in rest:
            rest[server] = [
                e
                for e in pool.of(index.on_server[server])
                if index.is_idle(e) and index.home[e] != DARK
            ]
        chosen.append(rest[server].pop(0))
        servers.add(server, -1)
    for e in chosen:
        servers.add(index.server[e], 1)
    return chosen


def best_fit(index: FabricIndex, pool: EndpointPool, count: int) -> list[int]:
    """Select from as few aggregators as the present homes allow, leaving the fewest idle.

    The tightest aggregator that fits; otherwise those with most idle endpoints first and the
    tightest one for the rest. Dark endpoints are not candidates; there must be ``count``
    others.
    """
    free = pool.by_free
    first = free.tightest(count)
    if first is not None:
        return _pick(index, pool, first, count, None)
    chosen: list[int] = []
    taken = [0] * (index.fixed_slot + 1)
    emptied: list[tuple[int, int]] = []
    while len(chosen) < count:
        missing = count - len(chosen)
        fitting = free.tightest(missing)
        a = free.fullest() if fitting is None else fitting
        have = free.counts[a]
        chosen += _pick(index, pool, a, min(missing, have), taken)
        emptied.append((a, have))
        free.add(a, -have)
    for a, have in emptied:
        free.add(a, have)
    return chosen


def best_fit_one(index: FabricIndex, pool: EndpointPool) -> int:
    """Select as ``best_fit`` does for a job of one endpoint; there must be a lit one."""
    a = pool.by_free.tightest(1)
    slots = index.idle_at[0 if a is None else a]
    if pool.matches is not None:
        slots = [list(pool.of(idle)) for idle in slots]
    return max(slots, key=len)[0]


def _pick(
    index: FabricIndex, pool: EndpointPool, a: int, count: int, taken: list[int] | None
) -> list[int]:
    """Take ``count`` of the pool's endpoints under one aggregator, balanced; updates taken."""
    slots = [pool.of(idle) for idle in index.idle_at[a]]
    if len(slots) == 1 or sum(map(len, slots)) == count:
        chosen = [e for slot in slots for e in slot][:count]
    elif count == 1 and taken is None:
        chosen = [max(slots, key=len)[0]]
    else:
        wanted = balanced([len(s) for s in slots], count, taken or [0] * len(slots))
        chosen = [e for slot, n in zip(slots, wanted, strict=True) for e in slot[:n]]
    if taken is not None:
        for e in chosen:
            taken[index.slot[e]] += 1
    chosen.sort()
    return chosen


def balanced(limits: Sequence[int], count: int, taken: Sequence[int]) -> list[int]:
    """Return how many endpoints to take per optical switch.

    Each comes from the switch of which the job has fewest, of equal ones from the one with
    most free: a job that is balanced over its switches fits under one aggregator after a regroup.
    ``limits`` must suffice for ``count``.
    """
    level = min(taken) + count // len(limits)
    wanted = _filled_to(level, limits, taken)
    while sum(further := _filled_to(level + 1, limits, taken)) <= count and further != limits:
        level, wanted = level + 1, further
    open_ = [s for s in range(len(limits)) if wanted[s] < further[s]]
    open_.sort(key=lambda s: wanted[s] - limits[s])
    for s in open_[: count - sum(wanted)]:
        wanted[s] += 1
    return wanted


def _filled_to(level: int, limits: Sequence[int], taken: Sequence[int]) -> list[int]:
    """Return the counts that bring every switch to the level, within its limit."""
    return [max(min(n, level - t), 0) for n, t in zip(limits, taken, strict=True)]


@dataclass(slots=True, frozen=True)
class Capacity:
    """How many candidates each aggregator can hold when idle endpoints move for free.

    ``ports[a, k]`` counts the optical ports without a busy or unavailable endpoint,
    ``candidates[k]`` the candidates per optical switch, ``fixed[a]`` the hard-wired ones.
    """

    ports: Ints
    candidates: Ints
    fixed: Ints
    here: Sequence[int] | None = None
    """Candidates per present home, to break ties."""

    @staticmethod
    def now(index: FabricIndex, pool: EndpointPool) -> Capacity:
        """Return the capacity that busy and unavailable endpoints leave."""
        candidates = np.array(pool.idle_by_slot[:-1], np.int64)
        return Capacity(index.ports - index.held, candidates, pool.fixed, pool.by_free.counts)

    @staticmethod
    def empty(index: FabricIndex, pool: EndpointPool) -> Capacity:
        """Return the capacity of the site without jobs."""
        return Capacity(index.ports, pool.total_by_slot[:-1], pool.total_fixed)

    def limits(self, chosen: Sequence[int]) -> Ints:
        """Return how many candidates these aggregators can hold per slot, hard-wired ones last."""
        rows = list(chosen)
        optical = np.minimum(self.ports[rows].sum(axis=0), self.candidates)
        return np.append(optical, self.fixed[rows].sum())

    def total(self) -> int:
        """Return how many candidates all aggregators can hold together."""
        return int(np.minimum(self.ports.sum(axis=0), self.candidates).sum() + self.fixed.sum())

    def cover(self, base: Ints | int = 0) -> Ints:
        """Return how many candidates each aggregator can hold, together with ``base``."""
        fits = np.minimum(self.ports + base, self.candidates)
        return np.asarray(fits.sum(axis=1) + self.fixed)

    def fewest(self, count: int) -> tuple[int, ...] | None:
        """Return the smallest, then tightest set of aggregators that can hold ``count``.

        Optical switches are independent of each other, so a set holds the job exactly when
        its cover does. None without such a set.
        """
        if self.total() < count:
            return None
        cover = self.cover()
        fitting = np.flatnonzero(cover >= count)
        if fitting.size:
            return (self._tightest(fitting),)
        size = 2
        descending = np.cumsum(np.sort(cover)[::-1])
        while descending[size - 1] < count:
            size += 1
        while comb(len(cover), size) <= _ENUMERATE_UP_TO:
            best = self._best_of(count, size)
            if best is not None:
                return best
            size += 1
        return self._greedy(count)

    def _tightest(self, fitting: Ints) -> int:
        width = self.ports[fitting].sum(axis=1)
        ties = fitting[width == width.min()][:_TIES_UP_TO].tolist()
        here = self.here
        return int(ties[0] if here is None else max(ties, key=here.__getitem__))

    def _best_of(self, count: int, size: int) -> tuple[int, ...] | None:
        sets = np.array(list(combinations(range(len(self.ports)), size)), np.int64)
        room = self.ports[sets].sum(axis=1)
        cover = np.minimum(room, self.candidates).sum(axis=1) + self.fixed[sets].sum(axis=1)
        here = np.zeros(len(sets)) if self.here is None else np.asarray(self.here)[sets].sum(axis=1)
        fitting = np.flatnonzero(cover >= count)
        if not fitting.size:
            return None
        order = np.lexsort((-here[fitting], room.sum(axis=1)[fitting]))
        return tuple(sets[fitting[order[0]]].tolist())

    def _greedy(self, count: int) -> tuple[int, ...]:
        chosen: list[int] = []
        base: Ints = np.zeros_like(self.candidates)
        fixed = 0
        while True:
            cover = self.cover(base) + fixed
            cover[chosen] = -1
            fitting = np.flatnonzero(cover >= count)
            if fitting.size:
                return (*chosen, self._tightest(fitting))
            best = int(cover.argmax())
            chosen.append(best)
            base = base + self.ports[best]
            fixed += int(self.fixed[best])


def least_span(index: FabricIndex, pool: EndpointPool, count: int) -> int:
    """Return the fewest aggregators that can hold ``count`` of the pool on the empty site.

    Remembered by the pool; ``count`` if even all of them cannot.
    """
    least = pool.least.get((count, None))
    if least is None:
        fewest = Capacity.empty(index, pool).fewest(count)
        least = pool.least[count, None] = count if fewest is None else len(fewest)
    return least


def nearest(
    index: FabricIndex, pool: EndpointPool, wanted: Sequence[int], target: Sequence[int]
) -> list[int]:
    """Select the wanted number of idle endpoints per slot: those under ``target`` first.

    Then from the aggregators with the fewest idle ones, so that the others stay whole; dark
    ones come last. In site order.
    """
    left = list(wanted)
    chosen: list[int] = []

    def select(slots: Sequence[Sequence[int]]) -> None:
        for s, idle in enumerate(slots[: index.fixed_slot]):
            if left[s]:
                some = pool.of(idle)[: left[s]]
                left[s] -= len(some)
                chosen.extend(some)

    for a in target:
        select(index.idle_at[a])
        some = pool.of(index.idle_at[a][-1])[: left[-1]]
        left[-1] -= len(some)
        chosen.extend(some)
    if any(left):
        for a in pool.by_free.ascending(1):
            if a not in target:
                select(index.idle_at[a])
                if not any(left):
                    break
    select(index.idle_dark)
    chosen.sort()
    return chosen


def homes_under(index: FabricIndex, chosen: Sequence[int], target: Sequence[int]) -> dict[int, int]:
    """Return new homes in which the idle ``chosen`` are under ``target``.

    Another idle endpoint moves only where a chosen one needs its port: the two swap.
    ``target`` must have capacity for the chosen (see Capacity.limits).
    """
    kept = set(chosen)
    after: dict[int, int] = {}
    spare = index.ports - index.lit
    homeless: list[int] = []
    open_ = {a: index.ports[a] - index.held[a] for a in target}
    for e in chosen:
        if index.home[e] in open_ and index.slot[e] != index.fixed_slot:
            open_[index.home[e]][index.slot[e]] -= 1
    for e in chosen:
        home, s = index.home[e], index.slot[e]
        if s == index.fixed_slot or home in open_:
            continue
        a = next(a for a in target if open_[a][s] > 0)
        open_[a][s] -= 1
        after[e] = a
        if spare[a, s] > 0:
            spare[a, s] -= 1
            if home != DARK:
                spare[home, s] += 1
            continue
        other = next(o for o in index.idle_at[a][s] if o not in kept and o not in after)
        after[other] = home
        if home == DARK:
            homeless.append(other)
    for e in homeless:
        refuges = np.flatnonzero(spare[:, index.slot[e]] > 0)
        if refuges.size:
            after[e] = int(refuges[0])
            spare[after[e], index.slot[e]] -= 1
    return after
