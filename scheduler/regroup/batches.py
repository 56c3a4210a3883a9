"""Cuts a plan into few batches with a limited number of endpoints dark at once.

A batch breaks all its circuits and then makes all its new ones, so its endpoints are dark
together and no others are. All moving members of a job move in one batch: the job is paused
once. After every batch each aggregator has the ports that its endpoints use: a port is free
before the batch that takes it, or becomes free in it. Idle endpoints move with the batch that
needs their port, and light up again in the same batch.

Jobs that need each other's ports are a *knot*: they move together, or not at all within the limit.
Two things cut it, where the caller allows them: idle endpoints that go dark in batches of their own
and light up after all others (*parked*); and jobs that are paused more than once, because their
members move one after the other, or make way on free ports for a while.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from scheduler.model import Fabric, Move, Slot
from scheduler.occupancy import all_homes, capacities, occupied

_TRIES, _TRIES_OF_EMPTY = 32, 1_000
"""Jobs per batch that are tried together with their blockers; and for an empty batch."""


class BatchError(ValueError):
    """No order was found within the limit of dark endpoints.

    ``needed`` is the size of the smallest next batch that was found.
    """

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message, needed)
        self.needed = needed

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(slots=True, frozen=True)
class Batches:
    """An ordered plan. One batch after the other turns the old homes into the new ones."""

    batches: tuple[tuple[Move, ...], ...]
    homes_after: Mapping[str, str | None]
    """Members of jobs as in the plan; the homes of idle endpoints depend on the order."""
    least: int
    """Lower bound on the batches of any order with as many pauses."""
    pauses: Mapping[str, int] = field(default_factory=dict)
    """By job that moves: in how many batches it has members."""


def cut_into_batches(
    fabric: Fabric,
    moves: Sequence[Move],
    max_dark: int | None = None,
    *,
    max_pauses: int = 1,
    park: bool = False,
) -> Batches:
    """Cut a plan's moves for this fabric into few batches of at most ``max_dark`` endpoints.

    ``max_dark`` counts the endpoints of a batch, idle ones too; None is unlimited: one batch. An
    idle endpoint may move in more than one batch. A job is paused ``max_pauses`` times at most: if
    that is 1, all its members move together and once. With ``park`` idle endpoints may stay dark
    from a batch of their own until the end; they are not counted meanwhile.

    ``Batches.least`` is a lower bound on the number of batches (bin packing). Finding the fewest is
    bin packing with precedence and NP-hard; this is first fit by decreasing size, jobs that block
    each other go together, and knots are cut only when nothing else fits.

    Raises ValueError if ``max_dark`` or ``max_pauses`` is below 1, and BatchError if a job, with
    its blockers, has more endpoints than that.
    """
    if max_dark is not None and max_dark < 1:
        raise ValueError(f"max_dark is {max_dark}; it must be 1 or more")
    if max_pauses < 1:
        raise ValueError(f"max_pauses is {max_pauses}; it must be 1 or more")
    if not moves:
        return Batches((), all_homes(fabric), 0)
    jobs = _groups(fabric, moves, max_pauses)
    if max_dark is None or max_dark >= len(moves):
        once = {group.job: 1 for group in jobs}
        after = all_homes(fabric) | {move.endpoint: move.target for move in moves}
        return Batches((tuple(moves),), after, 1, once)
    packing = _Packing(fabric, jobs, max_dark, park=park)
    found: list[tuple[Move, ...]] = []
    while packing.waiting:
        batches = packing.next()
        if not batches:
            names = list(dict.fromkeys(group.job for group in packing.blocked))
            some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            raise BatchError(
                f"found no order with at most {max_dark} endpoints dark at once:"
                f" {some} would take {packing.needed}",
                packing.needed,
            )
        found += batches
    found += packing.light_parked()
    running = sum(len(group.moves) for group in jobs)
    sizes = [len(group.moves) for group in jobs] if max_pauses == 1 else [1] * running
    least = max(least_batches(sizes, max_dark), -(-(running + packing.idle_at_least) // max_dark))
    return Batches(tuple(found), packing.homes, least, dict(packing.pauses))


def least_batches(sizes: Iterable[int], room: int) -> int:
    """Return a lower bound on the bins of size ``room`` that hold items of these sizes.

    L2 of Martello and Toth ("Lower bounds and reduction procedures for the bin packing
    problem", Discrete Applied Mathematics 28, 1990): for any k, items above room - k are
    alone, those above room / 2 share no bin, and the others of k and more fill what is left.
    """
    count = Counter(sizes)
    best = max(
        -(-sum(size * n for size, n in count.items()) // room),
        sum(n for size, n in count.items() if 2 * size > room),
    )
    for k in [k for k in count if 2 * k <= room]:
        alone = sum(n for size, n in count.items() if size > room - k)
        large = {s: n for s, n in count.items() if 2 * s > room and s <= room - k}
        left = sum(n * (room - s) for s, n in large.items())
        small = sum(s * n for s, n in count.items() if k <= s and 2 * s <= room)
        best = max(best, alone + sum(large.values()) + max(0, -(-(small - left) // room)))
    return best


@dataclass(slots=True, frozen=True)
class _Group:
    """The members of one job that move together."""

    job: str
    moves: tuple[Move, ...]
    change: Mapping[Slot, int]
    """Change of the ports that the job uses, without zeros."""
    pauses: int
    """In how many batches they may move."""


def _groups(fabric: Fabric, moves: Iterable[Move], max_pauses: int) -> list[_Group]:
    """Group the moves of running endpoints by job; the largest first, then as in the plan."""
    switch = {e.name: e.ocs for e in fabric.site.endpoints}
    owner = {name: job.name for job in fabric.jobs for name in job.endpoints}
    together: dict[str, list[Move]] = defaultdict(list)
    for move in moves:
        if move.endpoint in owner:
            together[owner[move.endpoint]].append(move)
    groups = [_group(job, members, switch, max_pauses) for job, members in together.items()]
    return sorted(groups, key=lambda group: -len(group.moves))


def _group(
    job: str, members: Iterable[Move], switch: Mapping[str, str | None], pauses: int
) -> _Group:
    change: Counter[Slot] = Counter()
    moves = tuple(members)
    for move in moves:
        ocs = switch[move.endpoint]
        if ocs is not None and move.source is not None:
            change[move.source, ocs] -= 1
        if ocs is not None and move.target is not None:
            change[move.target, ocs] += 1
    return _Group(job, moves, {s: n for s, n in change.items() if n}, pauses)


@dataclass(slots=True)
class _Batch:
    """A batch under construction."""

    chosen: dict[int, None]
    change: Counter[Slot]
    room: int
    parks: bool = False
    """Idle endpoints go dark before it: they are not counted."""


class _Packing:
    """The waiting groups, and the ports that are free or held by idle endpoints."""

    def __init__(
        self, fabric: Fabric, groups: Iterable[_Group], max_dark: int, *, park: bool
    ) -> None:
        self._max_dark, self._park = max_dark, park
        self._groups: list[_Group] = []
        self._switch = {e.name: e.ocs for e in fabric.site.endpoints}
        self.homes = all_homes(fabric)
        self.waiting: dict[int, None] = {}
        self.pauses: Counter[str] = Counter()
        """By job: batches so far."""
        self._parked: list[str] = []
        self.blocked: list[_Group] = []
        """When no batch is possible: jobs that would have to move together."""
        self.needed = 0
        taken = occupied(fabric.site.endpoints, self.homes)
        self._free = Counter({s: n - taken[s] for s, n in capacities(fabric).items()})
        self._idle: dict[Slot, list[str]] = defaultdict(list)
        for endpoint in fabric.idle():
            home = self.homes[endpoint.name]
            if endpoint.ocs is not None and home is not None:
                self._idle[home, endpoint.ocs].append(endpoint.name)
        self._coming: Counter[Slot] = Counter()
        """Ports that waiting jobs will occupy, less those they leave."""
        self._leaving: dict[Slot, dict[int, None]] = defaultdict(dict)
        for group in groups:
            self._put(group)
        self.idle_at_least = sum(max(n - self._free[s], 0) for s, n in self._coming.items())

    def _put(self, group: _Group) -> int:
        """Queue a group; return its number."""
        i = len(self._groups)
        self._groups.append(group)
        self.waiting[i] = None
        for slot, n in group.change.items():
            self._coming[slot] += n
            if n < 0:
                self._leaving[slot][i] = None
        return i

    def _remove(self, i: int) -> _Group:
        """Remove and return a waiting group."""
        group = self._groups[i]
        del self.waiting[i]
        for slot, n in group.change.items():
            self._coming[slot] -= n
            self._leaving[slot].pop(i, None)
        return group

    def next(self) -> list[tuple[Move, ...]]:
        """Carry out and return the next batch, with those that must precede it.

        Empty if no group can move.
        """
        self.blocked, self.needed = [], 0
        batch = self._filled()
        if not batch.chosen and self._park:
            batch = self._filled(parks=True)
        if batch.chosen:
            return self._carried_out(batch)
        knot = {group.job for group in self.blocked}
        everything = {group.job for group in self._groups}
        for jobs in (knot, everything):
            found = self._one_by_one(jobs) or self._out_of_the_way(jobs)
            if found:
                return found
        return []

    def _cuttable(self, jobs: AbstractSet[str]) -> list[int]:
        """Return the waiting groups of these jobs that may be paused more than once."""
        groups = self._groups
        return [i for i in self.waiting if groups[i].pauses > 1 and groups[i].job in jobs]

    def _one_by_one(self, jobs: AbstractSet[str]) -> list[tuple[Move, ...]]:
        """Move members of these jobs apart from the others."""
        switch = self._switch
        whole: dict[tuple[int, ...], _Group] = {}
        for i in self._cuttable(jobs):
            if len(self._groups[i].moves) > 1:
                group = self._remove(i)
                single = (_group(group.job, (move,), switch, 1) for move in group.moves)
                whole[tuple(self._put(one) for one in single)] = group
        batch = self._filled() if whole else _Batch({}, Counter(), 0)
        if whole and not batch.chosen and self._park:
            batch = self._filled(parks=True)
        chosen = set(batch.chosen)
        found = self._carried_out(batch) if batch.chosen else []
        for parts, group in whole.items():
            left = [self._remove(i).moves[0] for i in parts if i not in chosen]
            if left:
                pauses = group.pauses - (len(left) < len(parts))
                self._put(_group(group.job, left, switch, pauses))
        return found

    def _out_of_the_way(self, jobs: AbstractSet[str]) -> list[tuple[Move, ...]]:
        """Move the smallest of these jobs to free ports, from which it goes on later."""
        for i in sorted(self._cuttable(jobs), key=lambda k: len(self._groups[k].moves)):
            moves = self._groups[i].moves
            if len(moves) > self._max_dark:
                break
            free = self._free.copy()
            detour = []
            for move in moves:
                ocs = self._switch[move.endpoint]
                slots = [s for s, n in free.items() if n > 0 and s[1] == ocs]
                slots = [s for s in slots if s[0] not in (move.source, move.target)]
                if not slots:
                    break
                # Where the fewest waiting groups have to go.
                slot = max(slots, key=lambda s: free[s] - self._coming[s])
                free[slot] -= 1
                detour.append(Move(move.endpoint, move.source, slot[0]))
            else:
                group = self._remove(i)
                switch = self._switch
                later = [
                    Move(m.endpoint, d.target, m.target) for m, d in zip(moves, detour, strict=True)
                ]
                here = self._put(_group(group.job, detour, switch, 1))
                self._put(_group(group.job, later, switch, group.pauses - 1))
                change = Counter(self._groups[here].change)
                return self._carried_out(_Batch({here: None}, change, 0))
        return []

    def light_parked(self) -> list[tuple[Move, ...]]:
        """Return the batches in which parked endpoints light up, as far as ports are free."""
        moves = []
        for name in self._parked:
            ocs = self._switch[name]
            open_ = (s for s, n in self._free.items() if s[1] == ocs and n > 0)
            slot = next(open_, None)
            if slot is not None:
                self._free[slot] -= 1
                self.homes[name] = slot[0]
                moves.append(Move(name, None, slot[0]))
        return self._sliced(moves)

    def _sliced(self, moves: Sequence[Move]) -> list[tuple[Move, ...]]:
        step = self._max_dark
        return [tuple(moves[at : at + step]) for at in range(0, len(moves), step)]

    def _filled(self, *, parks: bool = False) -> _Batch:
        """Return the next batch, not yet carried out; empty if no group fits."""
        batch = _Batch({}, Counter(), self._max_dark, parks)
        for i in self.waiting:
            if not batch.room:
                break
            if len(self._groups[i].moves) <= batch.room:
                self._add(batch, (i,))
        for tried, i in enumerate(self.waiting):
            if not batch.room or tried >= (_TRIES if batch.chosen else _TRIES_OF_EMPTY):
                break
            if i not in batch.chosen:
                self._add_with_blockers(batch, i)
        return batch

    def _add(self, batch: _Batch, added: tuple[int, ...]) -> int | None:
        """Add groups to a batch if they fit; returns their endpoints, None without ports."""
        after = self._with(batch.change, added)
        size = self._size(batch, after, added)
        if size is not None and size <= batch.room:
            batch.chosen |= dict.fromkeys(added)
            batch.change, batch.room = after, batch.room - size
        return size

    def _add_with_blockers(self, batch: _Batch, i: int) -> None:
        """Add a group and all that block it; if that fails, keep the smallest such set."""
        limit = batch.room if batch.chosen else self.needed or None
        added = self._with_blockers(i, batch, limit)
        size = None if added is None else self._add(batch, added)
        if added and size and not batch.chosen and not 0 < self.needed <= size:
            self.blocked, self.needed = [self._groups[k] for k in added], size

    def _with(self, change: Counter[Slot], added: Iterable[int]) -> Counter[Slot]:
        after = change.copy()
        for i in added:
            for slot, n in self._groups[i].change.items():
                after[slot] += n
        return after

    def _size(self, batch: _Batch, after: Counter[Slot], added: Iterable[int]) -> int | None:
        """Return by how much a batch grows, with idle endpoints; None without ports."""
        before = batch.change
        grown = sum(len(self._groups[i].moves) for i in added)
        for slot in {slot for i in added for slot in self._groups[i].change}:
            free = self._free[slot]
            if after[slot] > free + len(self._idle[slot]):
                return None
            if not batch.parks:
                grown += max(after[slot] - free, 0) - max(before[slot] - free, 0)
        return grown

    def _with_blockers(
        self, first: int, batch: _Batch, limit: int | None
    ) -> tuple[int, ...] | None:
        """Return a group and those that block it, directly or indirectly.

        All waiting groups together always fit, so this ends. None beyond ``limit`` endpoints.
        """
        added = {first: None}
        size = len(self._groups[first].moves)
        after = self._with(batch.change, added)
        touched = list(self._groups[first].change)
        while touched:
            slot = touched[-1]
            if after[slot] <= self._free[slot] + len(self._idle[slot]):
                touched.pop()
                continue
            # The group that frees a port here and lacks fewest elsewhere.
            i = min(
                (k for k in self._leaving[slot] if k not in added and k not in batch.chosen),
                key=lambda k: (self._ports_lacking(k, after), len(self._groups[k].moves), k),
            )
            added[i] = None
            size += len(self._groups[i].moves)
            if limit is not None and size > limit:
                return None
            for other, n in self._groups[i].change.items():
                after[other] += n
            touched.extend(self._groups[i].change)
        return tuple(added)

    def _ports_lacking(self, i: int, after: Counter[Slot]) -> int:
        """Return how many ports a group lacks."""
        return sum(
            max(after[slot] + n - self._free[slot] - len(self._idle[slot]), 0)
            for slot, n in self._groups[i].change.items()
            if n > 0
        )

    def _carried_out(self, batch: _Batch) -> list[tuple[Move, ...]]:
        """Carry a batch out; return it after those in which idle endpoints go dark for it."""
        moves: list[Move] = []
        for i in batch.chosen:
            moves += self._remove(i).moves
        self.pauses.update({self._groups[i].job for i in batch.chosen})
        for move in moves:
            self.homes[move.endpoint] = move.target
        displaced: list[tuple[str, Slot]] = []
        for slot, n in batch.change.items():
            for _ in range(max(n - self._free[slot], 0)):
                # The last one that came goes first: the others are not disturbed.
                displaced.append((self._idle[slot].pop(), slot))
                self._free[slot] += 1
            self._free[slot] -= n
        if batch.parks:
            self._parked += [name for name, _ in displaced]
            self.homes |= {name: None for name, _ in displaced}
            darkened = [Move(name, source, None) for name, (source, _) in displaced]
            return [*self._sliced(darkened), tuple(moves)]
        for name, (source, ocs) in displaced:
            open_ = [s for s, n in self._free.items() if s[1] == ocs and n > 0 and s[0] != source]
            # To a port that no waiting group needs, if there is one.
            target = max(open_, key=lambda s: self._free[s] - self._coming[s], default=None)
            home = None if target is None else target[0]
            moves.append(Move(name, source, home))
            self.homes[name] = home
            if target is not None:
                self._free[target] -= 1
                self._idle[target].append(name)
        return [tuple(moves)]
