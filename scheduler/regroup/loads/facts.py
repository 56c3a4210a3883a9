"""What loads are made of: the units of a problem as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from scheduler.program import Floats
from scheduler.regroup.counts import Ints, RegroupProblem

_SECONDS = 1e-5
"""To generate loads, per unit and slot: measured on one core of an AMD EPYC."""
_SHARE = 0.5
"""Share of the time for that."""

MAX_SIZES = 8_000
"""Sizes of a load: the product of an aggregator's ports per optical switch, plus one each."""

Vector = tuple[int, ...]
"""Members of one part per optical switch."""

Part = tuple[int, Vector]
"""A unit of several parts, and what of it is there."""


class Sizes:
    """The sizes of a load, numbered: members per optical switch, the last one fastest."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        """``shape``: number of sizes per switch, from 0."""
        self.shape = shape
        self.count = prod(shape)
        self.steps = np.array([prod(shape[k + 1 :]) for k in range(len(shape))])
        """steps[switch]: by how much a number grows with a member."""
        self._each = np.indices(shape).reshape(len(shape), -1)
        self._known: dict[Vector, tuple[int, Floats | None]] = {}

    def number(self, vector: Sequence[int] | Ints) -> int:
        """Return the number of a size; it grows by as much with a part of that size."""
        return int(self.steps @ np.asarray(vector))

    def size(self, number: int | Ints) -> Ints:
        """Return the size of a number; of several: size[switch, number]."""
        return self._each[:, number]

    def grown(self, worth: Floats, vector: Vector, gain: float) -> tuple[int, Floats]:
        """Return the worth of loads with one part more: of sizes from the first number on."""
        known = self._known.get(vector)
        if known is None:
            known = self._known[vector] = self._lacking(vector)
        first, mask = known
        found = worth[: self.count - first] + gain
        if mask is not None:
            found += mask
        return first, found

    def _lacking(self, vector: Vector) -> tuple[int, Floats | None]:
        """Return a size's number, and minus infinity for each after it that is not as large."""
        first = self.number(vector)
        lacks = np.any(self._each[:, first:] < np.asarray(vector)[:, None], axis=0)
        return first, np.where(lacks, -np.inf, 0.0) if lacks.any() else None


@dataclass(slots=True, frozen=True)
class Load:
    """What one aggregator holds."""

    kept: tuple[int, ...] = ()
    """Units of one part, all of which is here, and of which members were here before."""
    arriving: tuple[tuple[int, int], ...] = ()
    """(kind, how many) of units of one part that arrive."""
    parts: tuple[Part, ...] = ()


@dataclass(slots=True, frozen=True)
class PartSizes:
    """What one part of a unit of several parts may be."""

    along: Sequence[Sequence[tuple[int, Vector]]]
    """along[switch]: members that it may have there, and the vector of these alone."""
    vectors: Ints
    """vectors[number, switch]: all that it may be."""


@dataclass(slots=True, frozen=True)
class Facts:
    """A problem whose units may all move freely, as arrays."""

    problem: RegroupProblem
    members: Ints
    """members[unit, switch]."""
    size: Ints
    """size[unit]: its members."""
    here: Ints
    """here[unit, aggregator, switch]: members before the plan."""
    least: Ints
    """least[unit]: parts that the unit may have."""
    kind: Sequence[int]
    """kind[unit] of a unit that is one part, -1 for others."""
    kinds: Sequence[Vector]
    """Members of a unit of each kind."""
    kept: Sequence[Sequence[tuple[int, int]]]
    """kept[aggregator]: (unit of one part that may keep members here, members that move here)."""
    large: Sequence[Sequence[int]]
    """large[aggregator]: units of several parts with members here."""
    compact: NDArray[np.bool_]
    """compact[unit]: it has no excess span before the plan and ports there, so it may stay."""
    parts: Mapping[int, PartSizes]
    """Parts of each unit with several parts."""
    sizes: Sizes
    """Sizes of loads: up to the most ports of an aggregator."""
    displaced: Floats
    """displaced[aggregator, size]: one-endpoint jobs that a load of this size displaces; infinite
    where it does not fit."""

    def moves(self, a: int, part: Part) -> int:
        """Return the members of a part that move to the aggregator."""
        j, vector = part
        return sum(vector) - int(np.minimum(self.here[j, a], vector).sum())

    def stays(self, a: int, part: Part) -> bool:
        """Return whether a part is what the aggregator has of its unit before the plan."""
        j, vector = part
        return bool(self.compact[j]) and vector == tuple(self.here[j, a].tolist())


def applies(problem: RegroupProblem) -> bool:
    """Return whether loads cover all layouts without excess span, and have few sizes.

    By the ports such layouts must exist: no unit has more members than its parts hold.
    """
    most = problem.by_switch(problem.room).max(axis=1).tolist()
    for unit in problem.units:
        fixed = unit.held or unit.dark or unit.held_dark or unit.most is not None
        large = any(n > unit.least * most[k] for k, n in unit.members.items())
        if fixed or large or unit.weight <= 0:
            return False
    return bool(problem.units) and prod(n + 1 for n in most) <= MAX_SIZES


def in_time(problem: RegroupProblem, seconds: float) -> bool:
    """Return whether loads apply, and are generated for all aggregators in half the time."""
    cells = len(problem.units) * len(problem.room)
    return cells * _SECONDS <= _SHARE * seconds and applies(problem)


def facts_of(problem: RegroupProblem, *, shards: bool) -> Facts:
    """Return a problem as arrays; ``applies`` must hold.

    Without ``shards`` the moves mean nothing: a unit of one part stays whole or leaves.
    """
    switches, width, count = problem.switches, problem.aggregators, len(problem.units)
    members = np.zeros((count, switches), np.int64)
    here = np.zeros((count, width, switches), np.int64)
    for j, unit in enumerate(problem.units):
        for k, n in unit.members.items():
            members[j, k] = n
        for slot, n in unit.start.items():
            here[j, slot % width, slot // width] = n
    size = members.sum(axis=1)
    least = np.array([u.least for u in problem.units], np.int64)
    number: dict[Vector, int] = {}
    kind = [
        number.setdefault(tuple(row), len(number)) if n == 1 else -1
        for row, n in zip(members.tolist(), least.tolist(), strict=True)
    ]
    kept: list[list[tuple[int, int]]] = [[] for _ in range(width)]
    large: list[list[int]] = [[] for _ in range(width)]
    for j, a in np.argwhere(here.any(axis=2)).tolist():
        if least[j] > 1:
            large[a].append(j)
            continue
        moved = int(size[j] - here[j, a].sum())
        if shards or not moved:
            kept[a].append((j, moved))
    room = problem.by_switch(problem.room).T
    sizes = Sizes(tuple((room.max(axis=0) + 1).tolist()))
    return Facts(
        problem=problem,
        members=members,
        size=size,
        here=here,
        least=least,
        kind=kind,
        kinds=list(number),
        kept=kept,
        large=large,
        compact=np.array(
            [
                sum(u.start.values()) == n
                and problem.span(u, u.start, u.dark) == u.least
                and bool((here[j] <= room).all())
                for j, (u, n) in enumerate(zip(problem.units, size.tolist(), strict=True))
            ]
        ),
        parts={
            j: _parts(members[j].tolist(), int(least[j]), sizes.shape)
            for j in np.flatnonzero(least > 1).tolist()
        },
        sizes=sizes,
        displaced=_displaced(room, problem.by_switch(problem.single).T, sizes),
    )


def _parts(members: Sequence[int], least: int, shape: tuple[int, ...]) -> PartSizes:
    """Return what one of ``least`` parts may be: the others hold the rest."""
    ranges = [
        range(max(n - (least - 1) * (size - 1), 0), min(n, size - 1) + 1)
        for n, size in zip(members, shape, strict=True)
    ]
    along = [
        [(n, tuple(n if at == k else 0 for at in range(len(shape)))) for n in sizes]
        for k, sizes in enumerate(ranges)
    ]
    return PartSizes(along, np.array(list(product(*ranges))))


def _displaced(room: Ints, single: Ints, sizes: Sizes) -> Floats:
    every = sizes.size(np.arange(sizes.count)).T
    beyond = np.maximum(every[None] + (single - room)[:, None], 0)
    over: Floats = beyond.sum(axis=2).astype(np.float64)
    over[(every[None] > room[:, None]).any(axis=2)] = np.inf
    return over
