"""Cuts a plan into few batches with a limited number of endpoints dark at once.

The batches are printed (``lightloom plan --state``); the controller carries out a plan in one
transaction.

A batch breaks all its circuits and then makes all its new ones, so its endpoints are dark
together and no others are. All moving members of a job move in one batch: the job is paused
once. After every batch each aggregator has the ports that its endpoints use: a port is free
before the batch that takes it, or becomes free in it. Idle endpoints move with the batch that
needs their port, and light up again in the same batch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduler.model import Fabric, Move, Plan
from scheduler.occupancy import Slot, all_homes, capacities, occupied

_TRIES, _TRIES_OF_EMPTY = 32, 1_000
"""Jobs per batch that are tried together with their blockers; and for an empty batch."""


class BatchError(ValueError):
    """No order was found within the limit of dark endpoints.

    ``needed`` is the size of the smallest next batch that was found.
    """

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


@dataclass(slots=True, frozen=True)
class Batches:
    """An ordered plan. One batch after the other turns the old homes into the new ones."""

    batches: tuple[tuple[Move, ...], ...]
    homes_after: Mapping[str, str | None]
    """Members of jobs as in the plan; the homes of idle endpoints depend on the order."""
    least: int
    """Lower bound on the batches of any order (of any that keeps jobs whole, if requested)."""


def cut_into_batches(
    fabric: Fabric, plan: Plan, max_dark: int | None = None, *, whole: bool = True
) -> Batches:
    """Cut a plan for this fabric into few batches of at most ``max_dark`` endpoints.

    ``max_dark`` counts idle endpoints too; None is no limit: one batch. An idle endpoint may
    move in more than one batch, a member of a job moves once. Without ``whole`` the members
    of a job may move in different batches: the job is paused for each of them, but far fewer
    endpoints have to be dark at once. ``Batches.least`` is a lower bound on the number of
    batches (bin packing). Finding the fewest is bin packing with precedence and NP-hard; this
    is first fit by decreasing size, and jobs that block each other go together.

    Raises ValueError if ``max_dark`` is below 1 and BatchError if a job, with its blockers, has
    more endpoints than that.
    """
    if max_dark is not None and max_dark < 1:
        raise ValueError(f"max_dark is {max_dark}; it must be 1 or more")
    if not plan.moves:
        return Batches((), plan.homes_after, 0)
    if max_dark is None or max_dark >= len(plan.moves):
        return Batches((plan.moves,), plan.homes_after, 1)
    jobs = _groups(fabric, plan.moves, whole=whole)
    packing = _Packing(fabric, jobs, max_dark)
    found = []
    while packing.waiting:
        batch = packing.batch()
        if not batch:
            names = list(dict.fromkeys(group.job for group in packing.blocked))
            some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            raise BatchError(
                f"found no order with at most {max_dark} endpoints dark at once:"
                f" {some} would take {packing.needed}",
                packing.needed,
            )
        found.append(batch)
    running = sum(len(group.moves) for group in jobs)
    least = max(
        least_batches([len(group.moves) for group in jobs], max_dark),
        -(-(running + packing.idle_at_least) // max_dark),
    )
    return Batches(tuple(found), packing.homes, least)


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


def _groups(fabric: Fabric, moves: Iterable[Move], *, whole: bool) -> list[_Group]:
    """Group the moves of running endpoints by job; the largest first, then as in the plan."""
    switch = {e.name: e.ocs for e in fabric.site.endpoints}
    owner = {name: job.name for job in fabric.jobs for name in job.endpoints}
    together: dict[str, list[Move]] = defaultdict(list)
    for move in moves:
        if move.endpoint in owner:
            together[owner[move.endpoint] if whole else move.endpoint].append(move)
    groups = []
    for members in together.values():
        change: Counter[Slot] = Counter()
        for move in members:
            ocs = switch[move.endpoint]
            if ocs is not None and move.source is not None:
                change[move.source, ocs] -= 1
            if ocs is not None and move.target is not None:
                change[move.target, ocs] += 1
        job = owner[members[0].endpoint]
        groups.append(_Group(job, tuple(members), {s: n for s, n in change.items() if n}))
    return sorted(groups, key=lambda group: -len(group.moves))


@dataclass(slots=True)
class _Batch:
    """A batch under construction."""

    chosen: dict[int, None]
    change: Counter[Slot]
    room: int


class _Packing:
    """The waiting groups, and the ports that are free or held by idle endpoints."""

    def __init__(self, fabric: Fabric, groups: Sequence[_Group], max_dark: int) -> None:
        self._max_dark, self._groups = max_dark, groups
        self.homes = all_homes(fabric)
        self.waiting = dict.fromkeys(range(len(groups)))
        self.blocked: list[_Group] = []
        """When no batch is possible: jobs that would have to move together."""
        self.needed = 0
        taken = occupied(fabric.site.endpoints, self.homes)
        self._free = Counter({s: n - taken[s] for s, n in capacities(fabric.site).items()})
        self._idle: dict[Slot, list[str]] = defaultdict(list)
        for endpoint in fabric.idle():
            home = self.homes[endpoint.name]
            if endpoint.ocs is not None and home is not None:
                self._idle[home, endpoint.ocs].append(endpoint.name)
        self._coming: Counter[Slot] = Counter()
        """Ports that waiting jobs will take, less those they leave."""
        self._leaving: dict[Slot, dict[int, None]] = defaultdict(dict)
        for i, group in enumerate(groups):
            for slot, n in group.change.items():
                self._coming[slot] += n
                if n < 0:
                    self._leaving[slot][i] = None
        self.idle_at_least = sum(max(n - self._free[s], 0) for s, n in self._coming.items())

    def batch(self) -> tuple[Move, ...]:
        """Remove and return the next batch; empty if no group can move."""
        batch = _Batch({}, Counter(), self._max_dark)
        self.blocked, self.needed = [], 0
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
        return self._carry_out(batch.chosen, batch.change)

    def _add(self, batch: _Batch, added: tuple[int, ...]) -> int | None:
        """Add groups to a batch if they fit; returns their endpoints, None without ports."""
        after = self._with(batch.change, added)
        size = self._size(batch.change, after, added)
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

    def _size(
        self, before: Counter[Slot], after: Counter[Slot], added: Iterable[int]
    ) -> int | None:
        """Return by how much a batch grows, with idle endpoints; None without ports."""
        grown = 0
        for i in added:
            grown += len(self._groups[i].moves)
        for slot in {slot for i in added for slot in self._groups[i].change}:
            free = self._free[slot]
            if after[slot] > free + len(self._idle[slot]):
                return None
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

    def _carry_out(self, chosen: Iterable[int], change: Counter[Slot]) -> tuple[Move, ...]:
        moves: list[Move] = []
        for i in chosen:
            group = self._groups[i]
            moves += group.moves
            del self.waiting[i]
            for slot, n in group.change.items():
                self._coming[slot] -= n
                self._leaving[slot].pop(i, None)
        for move in moves:
            self.homes[move.endpoint] = move.target
        displaced: list[tuple[str, Slot]] = []
        for slot, n in change.items():
            for _ in range(max(n - self._free[slot], 0)):
                # The last one that came goes first: the others are not disturbed.
                displaced.append((self._idle[slot].pop(), slot))
                self._free[slot] += 1
            self._free[slot] -= n
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
        return tuple(moves)
