"""Collects the columns and rows of a program, and formulates units by counts.

*Counts*: ``x[slot]`` members there after, ``y[a]`` the unit touches a, ``z[k]`` members left dark,
``leave[slot]`` members that leave, ``touch`` a member of it moves. This covers every layout, in
units times aggregators columns; ``scheduler.regroup.program.parts`` is far smaller where it
applies.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from scheduler.program import Floats, Program
from scheduler.regroup.counts import Counts, JobUnit, RegroupProblem, least_moves

EXCESS, PAUSED, MOVES, IDLE = "excess", "paused", "moves", "idle"


@dataclass(slots=True)
class Terms:
    """The program so far, and the costs of its columns."""

    problem: RegroupProblem
    program: Program = field(default_factory=Program)
    used: dict[int, dict[int, float]] = field(default_factory=dict)
    """Per slot, the columns that use ports there, and how many."""
    costs: dict[str, dict[int, float]] = field(
        default_factory=lambda: {c: {} for c in (EXCESS, PAUSED, MOVES, IDLE)}
    )
    constants: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys((EXCESS, PAUSED, MOVES, IDLE), 0.0)
    )
    total: dict[int, float] = field(default_factory=dict)
    """Columns of the weighted excess span of all units."""
    total_constant: float = 0.0
    jobs: dict[int, float] = field(default_factory=dict)
    """Columns that count jobs with a moved member."""
    jobs_constant: int = 0
    lights: list[tuple[int, int, int]] = field(default_factory=list)
    """(switch, column, n): dark members that stay dark."""

    def use(self, slot: int, column: int, ports: float) -> None:
        """Add ports to a column."""
        self.used.setdefault(slot, {})[column] = ports

    def charge_moves(self, column: int, moves: float) -> None:
        """Add the cost of running moves to a column."""
        if moves:
            self.costs[MOVES][column] = moves

    def charge_touch(self, column: int, unit: JobUnit) -> None:
        """Add the cost of a unit's pause to a column."""
        self.costs[PAUSED][column] = float(unit.size)
        self.jobs[column] = 1.0

    def charge_pause(self, unit: JobUnit) -> None:
        """Add the cost of a unit's pause, unless a column spares it (``spare_pause``)."""
        self.constants[PAUSED] += unit.size
        self.jobs_constant += 1

    def spare_pause(self, column: int, unit: JobUnit) -> None:
        """Make a column spare the pause of a unit."""
        self.costs[PAUSED][column] = -float(unit.size)
        self.jobs[column] = -1.0

    def charge_span(self, column: int, unit: JobUnit, places: float = 1.0) -> None:
        """Add the cost of span to a column."""
        if unit.weight:
            self.costs[EXCESS][column] = unit.weight * places
        if unit.all_weight:
            self.total[column] = unit.all_weight * places

    def start_span(self, unit: JobUnit) -> None:
        """Add the part of a unit's span that no column changes."""
        over = unit.base_span - unit.least
        self.constants[EXCESS] += unit.weight * over
        self.total_constant += unit.all_weight * over


class CountColumns:
    """One unit, exactly: its number of members per slot."""

    def __init__(
        self, terms: Terms, unit: JobUnit, allowed: Collection[int], *, compact: bool
    ) -> None:
        problem, program = terms.problem, terms.program
        self._unit, self._width = unit, problem.aggregators
        self._x: dict[int, int] = {}
        self._y: dict[int, int] = {}
        self._z: dict[int, int] = {}
        self._leave: dict[int, int] = {}
        self._touch = program.column(1, integer=True)
        terms.start_span(unit)
        terms.charge_touch(self._touch, unit)
        for k, n in unit.members.items():
            self._add_switch(terms, k, n, sorted({*allowed, *unit.held}))
        self._keep_apart(terms)
        span = dict.fromkeys((*self._y.values(), *self._z.values()), 1.0)
        # Members that cannot stay: their slot is outside of the model, or they are dark.
        gone = sum(n for slot, n in unit.start.items() if slot not in self._x)
        elsewhere = sum(unit.members.values()) - sum(unit.start.values())
        fixed = gone + elsewhere
        terms.constants[MOVES] += fixed
        scattered = problem.span(unit, unit.start, unit.dark) > unit.least
        whole = compact and unit.weight > 0
        if gone or elsewhere > sum(unit.dark.values()) or (whole and scattered):
            program.lower[self._touch] = 1.0
        least = float(unit.least - unit.base_span)
        program.row(span, least, least if whole else np.inf)
        if whole and scattered:
            # This row tightens the relaxation: it adds the least number of moves.
            moves = dict.fromkeys(self._leave.values(), 1.0)
            moves |= dict.fromkeys(self._z.values(), -1.0)
            program.row(moves, float(least_moves(problem, unit) - fixed), np.inf)

    def _keep_apart(self, terms: Terms) -> None:
        """Limit the members under every aggregator to the unit's spread."""
        if self._unit.most is None:
            return
        there: dict[int, dict[int, float]] = {}
        for slot, x in self._x.items():
            there.setdefault(slot % self._width, {})[x] = 1.0
        for a, row in there.items():
            cap = self._unit.exceptions.get(a, self._unit.most)
            y = self._y.get(a)
            # A touched aggregator has at most so many: this tightens the relaxation too.
            terms.program.row(
                row if y is None else row | {y: -float(cap)},
                -np.inf,
                0.0 if y is not None else float(cap),
            )

    def _add_switch(self, terms: Terms, k: int, members: int, allowed: list[int]) -> None:
        program, unit = terms.program, self._unit
        whole: dict[int, float] = {}
        for a in allowed:
            slot = k * self._width + a
            most = min(members, int(terms.problem.room[slot]))
            if most <= 0:
                continue
            x = self._x[slot] = program.column(most, integer=True)
            whole[x] = 1.0
            terms.use(slot, x, 1.0)
            if a not in unit.held:
                y = self._y.get(a)
                if y is None:
                    y = self._y[a] = program.column(1, integer=True)
                    terms.charge_span(y, unit)
                program.row({x: 1.0, y: -float(most)}, -np.inf, 0.0)
            was = unit.start.get(slot, 0)
            if was:
                leave = self._leave[slot] = program.column(was, integer=False)
                terms.charge_moves(leave, 1.0)
                program.row({x: 1.0, leave: 1.0}, was, np.inf)
                program.row({leave: 1.0, self._touch: -float(was)}, -np.inf, 0.0)
                program.row({x: 1.0, self._touch: float(was)}, was, np.inf)
        dark = unit.dark.get(k, 0)
        if dark:
            z = self._z[k] = program.column(dark, integer=True)
            whole[z] = 1.0
            terms.charge_moves(z, -1.0)
            terms.charge_span(z, unit)
            terms.lights.append((k, z, 1))
            program.row({z: 1.0, self._touch: float(dark)}, dark, np.inf)
        program.row(whole, members, members)

    def fill(self, values: list[float], lit: Counts, dark: Counts) -> bool:
        """Set the column values of a known place; False if the columns do not cover it."""
        if not lit.keys() <= self._x.keys():
            return False
        unit = self._unit
        for slot, column in self._x.items():
            values[column] = float(lit.get(slot, 0))
        places = {slot % self._width for slot in lit}
        for a, column in self._y.items():
            values[column] = float(a in places)
        for k, column in self._z.items():
            values[column] = float(dark.get(k, 0))
        for slot, column in self._leave.items():
            values[column] = float(max(unit.start[slot] - lit.get(slot, 0), 0))
        values[self._touch] = float(lit != unit.start or dark != unit.dark)
        return True

    def read(self, values: Floats) -> tuple[Counts, Counts] | None:
        """Return the place of these column values, None if members are missing."""
        lit = {slot: n for slot, c in self._x.items() if (n := round(values[c]))}
        dark = {k: n for k, c in self._z.items() if (n := round(values[c]))}
        members = dict(dark)
        for slot, n in lit.items():
            members[slot // self._width] = members.get(slot // self._width, 0) + n
        return (lit, dark) if members == self._unit.members else None
