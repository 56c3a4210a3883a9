"""In which order a plan's light is moved: few batches, few endpoints dark at once.

A batch breaks all its circuits and then makes all its new ones, so its endpoints are dark
together and no others are. All moving members of a job move in one batch: the job is paused
once. After every batch each aggregator has the ports that its endpoints use, so way is made
before, or in the same batch in which, it is taken. Idle endpoints make way as late as they
can, with the batch that needs their port, and light up again in the same batch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduler.model import Fabric, Move, Plan
from scheduler.occupancy import Slot, all_homes, capacities, occupied

_TRIES, _TRIES_OF_EMPTY = 32, 1_000
"""Jobs whose way is cleared on purpose, for one batch at most; and where nothing moves else."""


class BatchError(ValueError):
    """No order was found that keeps so few endpoints dark.

    ``needed`` is what the next batch would have had at least, as far as was found.
    """

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


@dataclass(slots=True, frozen=True)
class Batches:
    """A plan in order. One batch after the other turns the old homes into the new ones."""

    batches: tuple[tuple[Move, ...], ...]
    homes_after: Mapping[str, str | None]
    """Members of jobs as in the plan; where idle endpoints end depends on the order."""
    least: int
    """Proven: no order has fewer batches (none that keeps jobs whole, if they were to be)."""


def cut_into_batches(
    fabric: Fabric, plan: Plan, max_dark: int | None = None, *, whole: bool = True
) -> Batches:
    """Put a plan for this fabric into few batches of at most ``max_dark`` endpoints.

    ``max_dark`` counts idle endpoints too; None is no limit: one batch. An idle endpoint may
    make way in more than one batch, a member of a job moves once. Without ``whole`` the
    members of a job may move in different batches: it is paused for each of them, but far
    fewer endpoints have to be dark at once. ``Batches.least`` is a lower bound on the number
    of batches (bin packing). To find the fewest is bin packing with precedence and NP-hard;
    this is first fit by decreasing size, and what waits for each other's ports goes together.

    Raises ValueError when ``max_dark`` is below 1 and BatchError when a job, with those that
    have to make way for it at the same time, is more than that.
    """
    if max_dark is not None and max_dark < 1:
        raise ValueError(f"at most {max_dark} dark endpoints: it must be 1 or more")
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
    """Return a lower bound on the bins of ``room`` that hold items of these sizes.

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
    """Ports that the job takes more (or fewer) than before, without zeros."""


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
    """A batch while it is filled."""

    chosen: dict[int, None]
    change: Counter[Slot]
    room: int


class _Packing:
    """What is still to be moved, which ports are free by now, and which idle endpoints hold."""

    def __init__(self, fabric: Fabric, groups: Sequence[_Group], max_dark: int) -> None:
        self._max_dark, self._groups = max_dark, groups
        self.homes = all_homes(fabric)
        self.waiting = dict.fromkeys(range(len(groups)))
        self.blocked: list[_Group] = []
        """Jobs that have to move together and are too many, when no batch is possible."""
        self.needed = 0
        taken = occupied(fabric.site.endpoints, self.homes)
        self._free = Counter({s: n - taken[s] for s, n in capacities(fabric.site).items()})
        self._idle: dict[Slot, list[str]] = defaultdict(list)
        for endpoint in fabric.idle():
            home = self.homes[endpoint.name]
            if endpoint.ocs is not None and home is not None:
                self._idle[home, endpoint.ocs].append(endpoint.name)
        self._coming: Counter[Slot] = Counter()
        """Ports that waiting jobs will take in the end, less those they leave."""
        self._leaving: dict[Slot, dict[int, None]] = defaultdict(dict)
        for i, group in enumerate(groups):
            for slot, n in group.change.items():
                self._coming[slot] += n
                if n < 0:
                    self._leaving[slot][i] = None
        self.idle_at_least = sum(max(n - self._free[s], 0) for s, n in self._coming.items())

    def batch(self) -> tuple[Move, ...]:
        """Take the next batch off; empty when nothing can move."""
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
        """Add jobs to a batch if they fit; returns how many endpoints they darken, if they can."""
        after = self._with(batch.change, added)
        size = self._size(batch.change, after, added)
        if size is not None and size <= batch.room:
            batch.chosen |= dict.fromkeys(added)
            batch.change, batch.room = after, batch.room - size
        return size

    def _add_with_blockers(self, batch: _Batch, i: int) -> None:
        """Add a job and all that have to make way for it; if that fails, remember the least."""
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
        """Return by how much a batch grows, idle endpoints included; None: no ports."""
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
        """Return a job and those that have to make way for it, and for them in their turn.

        All waiting jobs together always fit, so this ends. None beyond ``limit`` endpoints.
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
            # Whoever makes room here and asks for least elsewhere.
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
        """Return how many ports a job lacks that are not there yet."""
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
                # Whoever came last goes first: the others are not disturbed.
                displaced.append((self._idle[slot].pop(), slot))
                self._free[slot] += 1
            self._free[slot] -= n
        for name, (source, ocs) in displaced:
            open_ = [s for s, n in self._free.items() if s[1] == ocs and n > 0 and s[0] != source]
            # Where no waiting job will want the port, as far as that is possible.
            target = max(open_, key=lambda s: self._free[s] - self._coming[s], default=None)
            home = None if target is None else target[0]
            moves.append(Move(name, source, home))
            self.homes[name] = home
            if target is not None:
                self._free[target] -= 1
                self._idle[target].append(name)
        return tuple(moves)
