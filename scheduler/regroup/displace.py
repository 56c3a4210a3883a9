"""Finds new homes for the parts of jobs that make room for one job: ejection chains.

A part moves as a whole to one aggregator, or its members to others that its job uses already.
Where they find no ports, the part ejects smaller parts from the aggregator where that pauses the
fewest endpoints; these search for homes in the same way, the largest first. Sizes fall along a
chain, so every chain ends. The ports that a target has left over are open to all parts: with
several optical switches most chains end there. Of a job that has members elsewhere only those
leave whose ports are needed: with many optical switches few aggregators have a port on each for
all the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from scheduler.placement.pool import Ints
from scheduler.regroup.surroundings import DisplaceablePart, Surroundings

Relocation = tuple[DisplaceablePart, int]
"""A part, and the aggregator it goes to."""

_RETRIES = 2
"""Retries after a part found no home: it stays then, and another one leaves."""

_NONE: frozenset[str] = frozenset()
_NOWHERE: frozenset[int] = frozenset()


@dataclass(slots=True, frozen=True)
class Displaced:
    """Relocations that make room on the targets."""

    relocations: tuple[Relocation, ...]
    others: dict[str, int]
    """Displaced jobs and their sizes."""

    @property
    def paused(self) -> int:
        """Endpoints of the displaced jobs."""
        return sum(self.others.values())


class Displacement:
    """Makes room for one job under one set of aggregators after the other."""

    def __init__(self, around: Surroundings) -> None:
        """Start with the job's own ports free."""
        self.around = around
        index = around.index
        self.own: Ints = np.array(around.own, np.int64)
        self.free: Ints = index.ports - index.held + self.own
        """Ports per aggregator without the job."""
        self._covers: dict[tuple[object, ...], tuple[DisplaceablePart, ...] | None] = {}
        self._parts: tuple[Ints, Ints, Ints] | None = None
        """Members, homes and vectors of all parts; filled when needed."""
        self._smaller: dict[int, Ints] = {}
        self._homes: dict[tuple[int, ...], list[int]] = {}

    def make_room(self, targets: Sequence[int], limit: int | None = None) -> Displaced | None:
        """Return relocations after which the job fits under the targets, None if none is found.

        They pause fewer than ``limit`` endpoints.
        """
        kept: list[DisplaceablePart] = []
        while len(kept) <= _RETRIES:
            found = _Try(self, targets).run(kept, limit)
            if not isinstance(found, DisplaceablePart):
                return found
            kept.append(found)
        return None

    def smaller(self, count: int) -> Ints:
        """Return the ports per aggregator of the parts of fewer than ``count`` members."""
        if self._parts is None:
            parts = [p for a in range(len(self.free)) for p in self.around.parts(a)]
            counts = np.array([len(p.members) for p in parts], np.int64)
            homes = np.array([p.home for p in parts], np.int64)
            vectors = np.array([p.vector for p in parts], np.int64).reshape(len(parts), -1)
            self._parts = counts, homes, vectors
        found = self._smaller.get(count)
        if found is None:
            counts, homes, vectors = self._parts
            found = self._smaller[count] = np.zeros_like(self.free)
            small = counts < count
            np.add.at(found, homes[small], vectors[small])
        return found

    def may_leave(self, part: DisplaceablePart, targets: Sequence[int]) -> bool:
        """Return whether another aggregator holds a part of a target once smaller parts leave.

        True until the first chain has counted them: most jobs fit without.
        """
        if self._parts is None or len(part.members) == 1 or len(targets) > 1:
            return True
        key = tuple(part.vector)
        homes = self._homes.get(key)
        if homes is None:
            most = self.free + self.smaller(len(part.members))
            homes = self._homes[key] = np.flatnonzero((most >= key).all(axis=1)).tolist()
        return len(homes) > (part.home in homes)

    def cheapest(
        self, aggregator: int, need: Sequence[int], below: int, barred: frozenset[str]
    ) -> tuple[DisplaceablePart, ...] | None:
        """Return parts of fewer than ``below`` members that free the needed ports."""
        key = aggregator, below, barred, *need
        if key not in self._covers:
            parts = self.around.parts(aggregator)
            small = [p for p in parts if len(p.members) < below and p.name not in barred]
            self._covers[key] = cover(small, need)
        return self._covers[key]


@dataclass(slots=True)
class _Try:
    """One try: the ports as they are after the relocations so far."""

    search: Displacement
    targets: Sequence[int]
    room: Ints = field(init=False)
    """Ports that are free for parts."""
    beside: Ints = field(init=False)
    """Ports of the targets that the members of the job there do not hold."""
    surplus: Ints = field(init=False)
    """Ports of all targets together that the job does not need."""
    pending: list[DisplaceablePart] = field(default_factory=list)
    """Parts without a home, the largest last."""
    others: dict[str, int] = field(default_factory=dict)
    """Displaced jobs and their sizes."""
    barred: dict[int, frozenset[str]] = field(default_factory=dict)
    """Per aggregator jobs whose parts there left already, or may not leave any more."""
    apart: dict[str, set[int]] = field(default_factory=dict)
    """New homes of parts of jobs that must be spread: no other part of the job may go there."""
    whole: set[tuple[int, str]] = field(default_factory=set)
    """Aggregators and jobs of which all members there leave, or none."""

    def run(
        self, kept: Iterable[DisplaceablePart], limit: int | None
    ) -> Displaced | DisplaceablePart | None:
        """Return the relocations, the part that finds no home, or None beyond the limit.

        The ``kept`` parts stay where they are.
        """
        search, targets = self.search, list(self.targets)
        for part in kept:
            if part.bound:
                self.whole.add((part.home, part.name))
            else:
                self._bar(part.home, part.name)
        need = search.around.missing(targets)
        parts = [
            lighter
            for a in targets
            for part in search.around.parts(a)
            if part.name not in self.barred.get(a, _NONE)
            and ((lighter := self._needed(part, need)).bound or search.may_leave(part, targets))
        ]
        leaving = cover(parts, need)
        if leaving is None:
            return None
        self.room = search.free.copy()
        self.surplus = search.free[targets].sum(axis=0) - search.around.total
        self.beside = search.free[targets] - search.own[targets]
        self._eject(leaving)
        made: list[Relocation] = []
        while self.pending:
            if limit is not None and sum(self.others.values()) >= limit:
                return None
            part = self.pending.pop()
            relocations = self._relocate(part)
            if not relocations:
                return part
            made += relocations
        return Displaced(tuple(made), self.others)

    def _needed(self, part: DisplaceablePart, need: Sequence[int]) -> DisplaceablePart:
        """Return the members of a part whose ports are needed, if the job can have them elsewhere.

        Otherwise all of it.
        """
        if not part.elsewhere or part.most is not None or (part.home, part.name) in self.whole:
            return part
        wanted = [min(n, there) for n, there in zip(need, part.vector, strict=True)]
        if wanted == part.vector or not any(wanted):
            return part
        places = [a for a in part.elsewhere if a not in self.targets]
        if (self.search.free[places].sum(axis=0) < wanted).any():
            return part
        return replace(_piece(part, self._slots, wanted), bound=True)

    @property
    def _slots(self) -> Sequence[int]:
        return self.search.around.index.slot

    def _change(self, aggregator: int, part: DisplaceablePart, sign: int) -> None:
        """Free the ports of a part (1), or occupy them (-1)."""
        vector = np.array(part.vector, np.int64) * sign
        if aggregator in self.targets:
            self.beside[self.targets.index(aggregator)] += vector
            self.surplus += vector
            self.room[list(self.targets)] = np.minimum(self.beside, self.surplus)
        else:
            self.room[aggregator] += vector

    def _eject(self, parts: Iterable[DisplaceablePart]) -> None:
        """Remove parts from their homes."""
        for part in parts:
            self.pending.append(part)
            self.others[part.name] = part.size
            self._change(part.home, part, 1)
            self._bar(part.home, part.name)
        self.pending.sort(key=lambda p: (len(p.members), max(p.vector)))

    def _bar(self, aggregator: int, name: str) -> None:
        self.barred[aggregator] = self.barred.get(aggregator, _NONE) | {name}

    def _relocate(self, part: DisplaceablePart) -> list[Relocation]:
        """Allocate ports for a part: the tightest aggregator, one with its job's members first.

        If none has them, other aggregators of its job share them, or it ejects smaller parts from
        the aggregator where that pauses fewest. Return nothing if all that fails.
        """
        need = np.maximum(part.vector - self.room, 0)
        lacking = need.sum(axis=1)
        lacking[part.home] = part.size + 1
        fits = [a for a in np.flatnonzero(lacking == 0).tolist() if self._may_go(part, a)]
        if fits:
            width = self.room[fits].sum(axis=1).tolist()
            best = min(
                zip(fits, width, strict=True), key=lambda f: (f[0] not in part.elsewhere, f[1])
            )
            return [self._allocate(part, best[0])]
        if len(part.members) == 1:
            return []
        if shared := self._share(part):
            return shared
        home = self._home_by_ejection(part, need, lacking)
        return [] if home is None else [self._allocate(part, home)]

    def _allocate(self, part: DisplaceablePart, aggregator: int) -> Relocation:
        """Allocate the ports of a part under its new home."""
        self._change(aggregator, part, -1)
        if part.most is not None:
            self.apart.setdefault(part.name, set()).add(aggregator)
        if part.bound:  # its job's members there are the reason why it may be there
            self._bar(aggregator, part.name)
        return part, aggregator

    def _share(self, part: DisplaceablePart) -> list[Relocation]:
        """Allocate ports for a part under several aggregators of its job; nothing if one lacks."""
        if part.most is not None:
            return []
        barred = dict(self.barred)
        taken: list[Relocation] = []
        left = replace(part, bound=True)
        for a in sorted(part.elsewhere):
            if not self._may_go(left, a):
                continue
            here = np.clip(self.room[a], 0, left.vector).tolist()
            if any(here):
                piece = _piece(left, self._slots, here)
                taken.append(self._allocate(piece, a))
                left = _without(left, piece)
            if not left.members:
                return taken
        for piece, a in taken:
            self._change(a, piece, 1)
        self.barred = barred
        return []

    def _may_go(self, part: DisplaceablePart, aggregator: int) -> bool:
        """Return whether a part may go there, beside the other parts of its job that moved."""
        if part.bound and part.name in self.barred.get(aggregator, _NONE):
            return False  # the job's other members there have left, or may leave no more
        return part.may_go(aggregator) and aggregator not in self.apart.get(part.name, _NOWHERE)

    def _home_by_ejection(self, part: DisplaceablePart, need: Ints, lacking: Ints) -> int | None:
        """Eject smaller parts from an aggregator, by the ports it lacks."""
        there = self.search.smaller(len(part.members))
        open_ = np.flatnonzero((need <= there).all(axis=1))
        best: tuple[int, tuple[DisplaceablePart, ...]] | None = None
        for a in open_[np.argsort(lacking[open_], kind="stable")].tolist():
            if best is not None and lacking[a] >= best[0]:
                break
            if a in self.targets or a == part.home or not self._may_go(part, a):
                continue
            barred = self.barred.get(a, _NONE)
            if a in part.elsewhere:
                barred |= {part.name}
            ejected = self.search.cheapest(a, need[a].tolist(), len(part.members), barred)
            if ejected is not None:
                cost = sum(p.size for p in ejected)
                if best is None or cost < best[0]:
                    best = cost, ejected
        if best is None:
            return None
        self._eject(best[1])
        return best[1][0].home


def _piece(part: DisplaceablePart, slots: Sequence[int], vector: Sequence[int]) -> DisplaceablePart:
    """Return as many members of a part on each switch as in the vector."""
    left = list(vector)
    members = []
    for e in part.members:
        if left[slots[e]] > 0:
            left[slots[e]] -= 1
            members.append(e)
    return replace(part, vector=list(vector), members=members)


def _without(part: DisplaceablePart, piece: DisplaceablePart) -> DisplaceablePart:
    """Return the rest of a part."""
    gone = set(piece.members)
    vector = [n - m for n, m in zip(part.vector, piece.vector, strict=True)]
    return replace(part, vector=vector, members=[e for e in part.members if e not in gone])


def cover(
    parts: Iterable[DisplaceablePart], need: Sequence[int]
) -> tuple[DisplaceablePart, ...] | None:
    """Select parts that hold at least the needed ports, greedily by size per useful port.

    None if all parts together do not.
    """
    left = {k: n for k, n in enumerate(need) if n > 0}
    open_ = list(parts)
    for k, n in left.items():
        if sum(part.vector[k] for part in open_) < n:
            return None
    chosen: list[DisplaceablePart] = []
    while lacking := [(k, n) for k, n in left.items() if n > 0]:
        part = _most_useful(open_, lacking)
        open_.remove(part)
        chosen.append(part)
        for k in left:
            left[k] -= part.vector[k]
    for part in sorted(chosen, key=lambda p: -p.size):
        if all(part.vector[k] <= -n for k, n in left.items()):
            chosen.remove(part)
            for k in left:
                left[k] += part.vector[k]
    return tuple(chosen)


def _most_useful(
    parts: Sequence[DisplaceablePart], lacking: Sequence[tuple[int, int]]
) -> DisplaceablePart:
    """Return the part that pauses fewest endpoints per port that is lacking on a switch."""
    best, best_key = parts[0], (inf, 0, 0)
    for part in parts:
        useful, vector = 0, part.vector
        for k, n in lacking:
            useful += n if n < vector[k] else vector[k]
        if useful:
            key = part.size / useful, len(part.members), part.members[0]
            if key < best_key:
                best, best_key = part, key
    return best
