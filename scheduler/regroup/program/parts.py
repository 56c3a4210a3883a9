"""Formulates compact units as parts: a column for each part in place, a count for the others.

A compact unit consists of parts, each under one aggregator. Where the unit already has members,
a part is a column of its own, as it saves moves there. Everywhere else a part costs the same for
every unit, so all units share one pool: ``slots[vector][a]`` parts of that size under aggregator
``a``, and every unit has only the number that it uses. This is exact, and the program grows with
members and aggregators instead of with units times aggregators.

Two parts of a unit are never under one aggregator: the span would be less than its lower bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler.program import Floats
from scheduler.regroup.counts import Counts, JobUnit, RegroupProblem, disruption_per_excess
from scheduler.regroup.program.terms import Terms

Vector = tuple[tuple[int, int], ...]
"""Members of one part per optical switch, without zeros."""

_WHOLE = 0.999
"""A share of a part that counts as all of it."""


@dataclass(slots=True)
class PartPool:
    """Parts under aggregators where their unit has no members."""

    terms: Terms
    takers: dict[Vector, dict[int, float]] = field(default_factory=dict)
    """Columns that use parts of a size, with the most that each uses."""
    slots: dict[Vector, dict[int, int]] = field(default_factory=dict)
    """Per size and aggregator, the column that counts its parts there."""

    def close(self) -> None:
        """Add the columns for the places of the parts, after all units."""
        terms, problem = self.terms, self.terms.problem
        room = problem.by_switch(problem.room)
        for vector, takers in self.takers.items():
            fits = np.min([room[k] // n for k, n in vector], axis=0)
            most = sum(takers.values())
            slots = self.slots[vector] = {}
            for a in np.flatnonzero(fits > 0).tolist():
                column = slots[a] = terms.program.column(min(int(fits[a]), most), integer=True)
                for k, n in vector:
                    terms.use(k * problem.aggregators + a, column, float(n))
            row = dict.fromkeys(slots.values(), 1.0) | dict.fromkeys(takers, -1.0)
            terms.program.row(row, 0.0, 0.0)


class PartColumns:
    """One unit as parts; alternatively it stays as it is, or is left out at a price."""

    def __init__(
        self, pool: PartPool, unit: JobUnit, *, compact: bool, elastic: bool, shards: bool
    ) -> None:
        """``compact`` requires no excess span of a unit of positive weight.

        ``elastic`` allows leaving it out. Without ``shards`` all parts are counted in the pool,
        which suffices if moves do not count.
        """
        terms = pool.terms
        self.unit, self._width = unit, terms.problem.aggregators
        self._here: dict[tuple[int, Vector], int] = {}
        self._elsewhere: dict[Vector, int] = {}
        self._stay: int | None = None
        self._out: dict[int, int] = {}
        excess = terms.problem.span(unit, unit.start, unit.dark) - unit.least
        rigid = compact and unit.weight > 0
        # In a part of the site the start of a unit may lie outside.
        present = sum(unit.start.values()) + sum(unit.dark.values()) == _members(unit)
        sizes = part_sizes(terms.problem, unit)
        self._add_parts(pool, sizes, whole=shards)
        if present and (excess == 0 or not rigid):
            self._add_stay(terms, excess)
        if elastic and not rigid:
            self._add_out(terms, excess)
        parts = dict.fromkeys((*self._here.values(), *self._elsewhere.values()), 1.0)
        others = [*self._out.values(), *([] if self._stay is None else [self._stay])]
        least = float(unit.least)
        terms.program.row(parts | dict.fromkeys(others, least), least, least)
        if len(sizes) > 1:
            members = {c: float(_size(v)) for (_, v), c in self._here.items()}
            members |= {c: float(_size(v)) for v, c in self._elsewhere.items()}
            total = float(_members(unit))
            terms.program.row(members | dict.fromkeys(others, total), total, total)

    def _add_parts(self, pool: PartPool, sizes: Sequence[Vector], *, whole: bool) -> None:
        terms, unit = pool.terms, self.unit
        room = terms.problem.room
        at: dict[int, dict[int, int]] = {a: {} for a in unit.held}
        if whole:
            for slot, n in unit.start.items():
                at.setdefault(slot % self._width, {})[slot // self._width] = n
        for vector in sizes:
            size = _size(vector)
            for a, there in at.items():
                if unit.held and a not in unit.held:
                    continue
                if any(room[k * self._width + a] < n for k, n in vector):
                    continue
                kept = sum(min(n, there.get(k, 0)) for k, n in vector)
                if kept == _members(unit):
                    continue  # the unit stays as it is: a column of its own
                column = self._here[a, vector] = terms.program.column(1, integer=True)
                terms.charge_moves(column, float(size - kept))
                for k, n in vector:
                    terms.use(k * self._width + a, column, float(n))
            if unit.held:
                continue
            column = self._elsewhere[vector] = terms.program.column(unit.least, integer=True)
            terms.charge_moves(column, float(size))
            pool.takers.setdefault(vector, {})[column] = float(unit.least)
        terms.charge_pause(unit)

    def _add_stay(self, terms: Terms, excess: int) -> None:
        """Add the column of a unit that stays as it is, dark members included."""
        unit = self.unit
        self._stay = column = terms.program.column(1, integer=True)
        for slot, n in unit.start.items():
            terms.use(slot, column, float(n))
        for k, n in unit.dark.items():
            terms.lights.append((k, column, n))
        terms.charge_span(column, unit, float(excess))
        terms.spare_pause(column, unit)

    def _add_out(self, terms: Terms, excess: int) -> None:
        """Add the columns of a unit that is left out: no ports, and a lower bound on its cost."""
        unit = self.unit
        for over, moves in disruption_per_excess(terms.problem, unit, excess).items():
            column = self._out[over] = terms.program.column(1, integer=True)
            terms.charge_span(column, unit, float(over))
            terms.charge_moves(column, float(moves))
            for k, n in unit.dark.items():
                terms.lights.append((k, column, n))

    def fill(self, values: list[float], pool: PartPool, lit: Counts, dark: Counts) -> bool:
        """Set the column values of a known place; False if the columns do not cover it."""
        if self._stay is not None and lit == self.unit.start and dark == self.unit.dark:
            values[self._stay] = 1.0
            return True
        at: dict[int, list[tuple[int, int]]] = {}
        for slot, n in sorted(lit.items()):
            at.setdefault(slot % self._width, []).append((slot // self._width, n))
        parts = [(a, tuple(vector)) for a, vector in at.items()]
        known = not dark and len(parts) == self.unit.least
        if not known or not all(p in self._here or p[1] in self._elsewhere for p in parts):
            if not self._out:
                return False
            values[self._out[max(self._out)]] = 1.0
            return True
        for a, vector in parts:
            if (a, vector) in self._here:
                values[self._here[a, vector]] = 1.0
            else:
                values[self._elsewhere[vector]] += 1.0
                values[pool.slots[vector][a]] += 1.0
        return True

    def stays(self, values: Floats) -> bool:
        """Return whether the unit stays as it is."""
        return self._stay is not None and values[self._stay] > _WHOLE

    def parts(self, values: Floats) -> tuple[list[tuple[int, Vector]], Counter[Vector]] | None:
        """Return the parts in place and the counts of others; None if parts are missing."""
        here = [at for at, column in self._here.items() if values[column] > _WHOLE]
        elsewhere = Counter(
            {v: n for v, c in self._elsewhere.items() if (n := int(values[c] + 1 - _WHOLE))}
        )
        return (here, elsewhere) if len(here) + elsewhere.total() == self.unit.least else None


class _FreeParts:
    """Parts of the pool that are not assigned yet."""

    def __init__(self, pool: PartPool, values: Floats) -> None:
        self._width = pool.terms.problem.aggregators
        self._left = {
            vector: Counter({a: n for a, c in slots.items() if (n := int(values[c] + 1 - _WHOLE))})
            for vector, slots in pool.slots.items()
        }

    def assign(self, lit: dict[int, int], vector: Vector, a: int) -> bool:
        """Assign a part under an aggregator if one is left and the unit has none there."""
        slots = [(k * self._width + a, n) for k, n in vector]
        if self._left[vector][a] <= 0 or any(slot in lit for slot, _ in slots):
            return False
        self._left[vector][a] -= 1
        lit.update(slots)
        return True

    def assign_any(self, lit: dict[int, int], vector: Vector) -> bool:
        """Assign a part under any aggregator."""
        return any(self.assign(lit, vector, a) for a, n in self._left[vector].items() if n > 0)


def read(
    pool: PartPool, units: Sequence[PartColumns], values: Floats
) -> list[tuple[Counts, Counts] | None]:
    """Convert column values to places; None for a unit without a complete place."""
    width = pool.terms.problem.aggregators
    free = _FreeParts(pool, values)
    places: list[tuple[Counts, Counts] | None] = []
    later: list[tuple[int, dict[int, int], list[Vector]]] = []
    for i, columns in enumerate(units):
        unit = columns.unit
        found = columns.parts(values)
        if columns.stays(values):
            places.append((dict(unit.start), dict(unit.dark)))
        elif found is None:
            places.append(None)
        else:
            here, elsewhere = found
            lit = {k * width + a: n for a, vector in here for k, n in vector}
            # A part where the unit has members saves moves that the program does not count.
            near = {slot % width for slot in unit.start}
            missing = [
                vector
                for vector in elsewhere.elements()
                if not any(free.assign(lit, vector, a) for a in near)
            ]
            later.append((i, lit, missing))
            places.append((lit, {}))
    for i, lit, missing in later:
        if not all(free.assign_any(lit, vector) for vector in missing):
            places[i] = None
    return places


def part_sizes(problem: RegroupProblem, unit: JobUnit) -> list[Vector]:
    """Return the sizes that a part of a compact unit can have; empty if parts do not apply.

    They do not apply to units whose spread limits them: two parts could share an aggregator.
    One size for a unit under one aggregator, or for one that fills all ports of its
    aggregators; otherwise, on one optical switch, all sizes with which the other parts fit.
    """
    if unit.alone and unit.most is None:
        return [tuple(sorted(unit.members.items()))] if len(unit.held) < 2 else []
    if unit.base_span or unit.dark or not unit.members or unit.most is not None:
        return []
    room = problem.by_switch(problem.room)
    most = {k: int(room[k].max()) for k in unit.members}
    if all(n == unit.least * most[k] for k, n in unit.members.items()):
        return [tuple(sorted(most.items()))]
    if len(unit.members) > 1:
        return []
    ((k, members),) = unit.members.items()
    if members > unit.least * most[k]:
        return []
    return [((k, n),) for n in range(max(members - (unit.least - 1) * most[k], 1), most[k] + 1)]


def columns_needed(problem: RegroupProblem) -> int:
    """Estimate the columns of a program: columns of the pool and of units by counts."""
    vectors: set[Vector] = set()
    counted = 0
    for unit in problem.units:
        sizes = part_sizes(problem, unit)
        vectors.update(sizes)
        counted += 0 if sizes else 2 * len(unit.members)
    return (len(vectors) + counted) * problem.aggregators


def _members(unit: JobUnit) -> int:
    return sum(unit.members.values())


def _size(vector: Vector) -> int:
    return sum(n for _, n in vector)
