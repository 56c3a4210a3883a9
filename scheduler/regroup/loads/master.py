"""The program that chooses one load per aggregator, and its prices.

Rows: every unit of one part keeps its members in one load, or moves; as many of a kind arrive as
move; a unit of several parts has all its members in loads, and at most as many parts as it may; an
aggregator has one load; a unit of several parts stays as it is only where each of its parts stays;
earlier criteria keep their value. What no load holds costs a penalty, so that there is a solution
from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from scheduler.program import Floats, Program, quiet_solver, solve
from scheduler.regroup.loads.facts import Facts, Load
from scheduler.regroup.loads.pricing import Prices
from scheduler.regroup.program.terms import MOVES, PAUSED

_PENALTY, _FIRM = 0.5, 4.0
"""Cost of a member that no load holds, besides its move: in the relaxation, where a higher one
slows the generation down, and where whole loads are chosen."""
_INFINITY = highspy.kHighsInf
_SETTLED = 0.1
"""Share of the open aggregators whose loads are settled between two relaxations."""
_WHOLE, _TINY = 0.999, 1e-6
_GAP = 0.999
"""A choice within less than one member of the best is the best."""
_SLACK = 1e-3
"""More than what rounding adds to a bound."""
_NO_INDEX, _NO_VALUE = np.array([], np.int32), np.array([], np.float64)

Blur = Callable[[Floats], Floats]
"""Changes shares."""


@dataclass(slots=True, frozen=True)
class Chosen:
    """A choice of whole loads: their numbers, and the solver's run time."""

    loads: tuple[int, ...]
    seconds: float


class Master:
    """The program; loads are added to it."""

    def __init__(self, facts: Facts, criterion: str, caps: Mapping[str, float]) -> None:
        """``caps`` are the values of the earlier criteria."""
        self._facts, self._criterion = facts, criterion
        self._solver = quiet_solver()
        self._bounds: list[tuple[float, float]] = []
        self._columns: list[tuple[float, dict[int, float], float]] = []
        """Cost, terms by row, and the most of each."""
        self._unplaced: dict[int, tuple[int, float]] = {}
        """By row: the column of what no load holds, and its members."""
        self.loads: list[tuple[int, Load]] = []
        """Aggregator and load."""
        self._known: set[tuple[int, Load]] = set()
        self._unit: dict[int, int] = {}
        self._member: dict[tuple[int, int], int] = {}
        self._part: dict[int, int] = {}
        self._stay: dict[tuple[int, int], int] = {}
        self._moved: dict[int, int] = {}
        self._staying: dict[int, int] = {}
        self.rents: list[float] = []
        """What the load of an aggregator must be worth at the last prices to be of use."""
        large = np.flatnonzero(facts.least > 1).tolist()
        pause = float(facts.size[large].sum())
        self._constants = {MOVES: 0.0, PAUSED: pause}
        self._cap = {c: self._row(-_INFINITY, v - self._constants[c]) for c, v in caps.items()}
        self._kind = [self._row(0.0, _INFINITY) for _ in facts.kinds]
        for v, members in enumerate(facts.kinds):
            self._penalise(self._kind[v], float(sum(members)))
        for j, v in enumerate(facts.kind):
            (self._add_unit if v >= 0 else self._add_large)(j)
        self._place = [self._row(-_INFINITY, 1.0) for _ in facts.large]
        self._first = len(self._columns)

    def _penalise(self, row: int, members: float, cost: float = 0.0) -> None:
        self._unplaced[row] = self._column(cost + _PENALTY * members, {row: 1.0}), members

    def _add_unit(self, j: int) -> None:
        facts = self._facts
        row = self._unit[j] = self._row(1.0, 1.0)
        size = float(facts.size[j])
        terms = {row: 1.0, self._kind[facts.kind[j]]: -1.0}
        terms |= dict.fromkeys(self._cap.values(), size)
        self._moved[j] = self._column(size, terms, upper=1.0)

    def _add_large(self, j: int) -> None:
        facts = self._facts
        for k, n in enumerate(facts.members[j].tolist()):
            row = self._member[j, k] = self._row(float(n), float(n))
            if n:
                self._penalise(row, 1.0, cost=float(self._criterion == MOVES))
        self._part[j] = self._row(-_INFINITY, float(facts.least[j]))
        if not facts.compact[j]:
            return
        terms: dict[int, float] = {}
        for a in np.flatnonzero(facts.here[j].any(axis=1)).tolist():
            row = self._stay[j, a] = self._row(0.0, _INFINITY)
            terms[row] = -1.0
        saved = float(facts.size[j])
        if PAUSED in self._cap:
            terms[self._cap[PAUSED]] = -saved
        cost = -saved if self._criterion == PAUSED else 0.0
        self._staying[j] = self._column(cost, terms, upper=1.0)

    def add(self, aggregator: int, load: Load) -> bool:
        """Add a load; return whether it is new."""
        if (aggregator, load) in self._known:
            return False
        self._known.add((aggregator, load))
        facts = self._facts
        terms = {self._place[aggregator]: 1.0}
        used = np.zeros(len(facts.sizes.shape), np.int64)
        moves = paused = 0
        here = dict(facts.kept[aggregator])
        for j in load.kept:
            terms[self._unit[j]] = 1.0
            used += facts.members[j]
            moves += here[j]
            paused += int(facts.size[j]) if here[j] else 0
        for v, count in load.arriving:
            terms[self._kind[v]] = float(count)
            used += count * np.asarray(facts.kinds[v])
        for part in load.parts:
            j, vector = part
            used += np.asarray(vector)
            moves += facts.moves(aggregator, part)
            terms[self._part[j]] = 1.0
            for k, n in enumerate(vector):
                if n:
                    terms[self._member[j, k]] = float(n)
            if (j, aggregator) in self._stay and facts.stays(aggregator, part):
                terms[self._stay[j, aggregator]] = 1.0
        displaced = float(facts.displaced[aggregator][facts.sizes.number(used)])
        costs = {MOVES: moves + displaced, PAUSED: paused + displaced}
        for earlier, row in self._cap.items():
            if costs[earlier]:
                terms[row] = costs[earlier]
        self._column(costs[self._criterion], terms)
        self.loads.append((aggregator, load))
        return True

    def solve(self) -> tuple[float, Prices]:
        """Solve the relaxation; return its value and prices."""
        self._solver.run()
        value = float(self._solver.getInfo().objective_function_value)
        duals = np.asarray(self._solver.getSolution().row_dual)
        self.rents = np.maximum(-duals[self._place], 0.0).tolist()
        return value + self._constants[self._criterion], self._prices(duals)

    def _prices(self, duals: Floats) -> Prices:
        facts = self._facts
        unit, part = np.zeros(len(facts.least)), np.zeros(len(facts.least))
        member = np.zeros(facts.members.shape)
        for j, row in self._unit.items():
            unit[j] = duals[row]
        for (j, k), row in self._member.items():
            member[j, k] = duals[row]
        for j, row in self._part.items():
            part[j] = min(duals[row], 0.0)
        stay = {key: max(float(duals[row]), 0.0) for key, row in self._stay.items()}
        weights = {c: max(-float(duals[row]), 0.0) for c, row in self._cap.items()}
        weights[self._criterion] = 1.0
        arriving = np.maximum(duals[self._kind], 0.0) if self._kind else np.zeros(0)
        moves, paused = weights.get(MOVES, 0.0), weights.get(PAUSED, 0.0)
        return Prices(unit, arriving, member, part, stay, moves, paused)

    def guess(self) -> Prices:
        """Return prices to begin with: a member is worth its cost, and room nothing."""
        facts = self._facts
        moves, paused = float(self._criterion == MOVES), float(self._criterion == PAUSED)
        return Prices(
            unit=facts.size.astype(float),
            arriving=np.zeros(len(facts.kinds)),
            member=np.full(facts.members.shape, moves),
            part=np.zeros(len(facts.least)),
            stay={key: facts.size[key[0]] * paused / facts.least[key[0]] for key in self._stay},
            moves=moves,
            paused=paused,
        )

    def bound(self, prices: Prices, worths: Sequence[float]) -> float:
        """Return the bound that prices prove; ``worths`` are of each aggregator's best load."""
        facts = self._facts
        proven = self._constants[self._criterion] - sum(max(worth, 0.0) for worth in worths)
        each = prices.moves + prices.paused
        for j in self._unit:
            moved = each * float(facts.size[j]) + float(prices.arriving[facts.kind[j]])
            proven += min(float(prices.unit[j]), moved)
        for j in self._part:
            proven += float(prices.member[j] @ facts.members[j])
            proven += float(prices.part[j]) * float(facts.least[j])
        bonus = dict.fromkeys(self._staying, 0.0)
        for (j, _), worth in prices.stay.items():
            bonus[j] += worth
        for j, worth in bonus.items():
            proven += min(worth - float(facts.size[j]) * prices.paused, 0.0)
        given = {MOVES: prices.moves, PAUSED: prices.paused}
        for earlier, row in self._cap.items():
            proven -= given[earlier] * self._bounds[row][1]
        return proven - _SLACK

    def seconds(self) -> float:
        """Return the solver's own run time so far."""
        return float(self._solver.getRunTime())

    def choose(self, start: Collection[int], seconds: float) -> Chosen:
        """Choose whole loads; ``start`` is a choice to begin with."""
        program = Program()
        rows: list[dict[int, float]] = [{} for _ in self._bounds]
        objective: dict[int, float] = {}
        firm = {column: (_FIRM - _PENALTY) * n for column, n in self._unplaced.values()}
        many = float(self._facts.size.sum())
        for column, (cost, terms, upper) in enumerate(self._columns):
            load = column >= self._first
            program.column(1.0 if load else min(upper, many), integer=load)
            objective[column] = cost + firm.get(column, 0.0)
            for row, value in terms.items():
                rows[row][column] = value
        for terms, (lower, upper) in zip(rows, self._bounds, strict=True):
            program.row(terms, lower, upper)
        guess = self._values({self._first + i for i in start})
        solved = solve(
            program,
            objective,
            0.0,
            seconds,
            guess=guess,
            gap=_GAP,
            nodes=self._facts.problem.search_nodes,
        )
        if solved.values is None:
            return Chosen((), solved.seconds)
        taken = np.flatnonzero(solved.values[self._first :] > 0.5)
        return Chosen(tuple(taken.tolist()), solved.seconds)

    def rounded(self, in_time: Callable[[], bool], blur: Blur) -> tuple[int, ...]:
        """Settle the loads with the largest shares of the relaxation, solve it again, and so on.

        Returns loads that go together; they may leave units out. ``blur`` changes shares for the
        order.
        """
        self._set_penalty(_FIRM)
        at = np.array([a for a, _ in self.loads])
        known = np.ones(len(self.loads), bool)
        """Loads that may still be chosen."""
        left = np.array([upper for _, upper in self._bounds])
        left[list(self._cap.values())] = _INFINITY
        taken: list[int] = []
        while known.any() and in_time():
            self._solver.run()
            shares = np.asarray(self._solver.getSolution().col_value)[self._first :]
            shares = np.where(known, shares, 0.0)
            count = max(int(_SETTLED * len(np.unique(at[known]))), 1)
            if shares.max() < _TINY:
                break
            order = blur(shares)
            for i in np.argsort(-order).tolist():
                if shares[i] < _TINY or (count <= 0 and shares[i] < _WHOLE):
                    break
                if not known[i]:
                    continue
                terms = self._columns[self._first + i][1]
                fits = all(left[row] >= value - _TINY for row, value in terms.items())
                known[i] = False
                if fits:
                    known[at == at[i]] = False
                    count -= 1
                    taken.append(i)
                    for row, value in terms.items():
                        left[row] -= value
                bound = float(fits)
                self._solver.changeColBounds(self._first + i, bound, bound)
        for i in range(len(self.loads)):
            self._solver.changeColBounds(self._first + i, 0.0, _INFINITY)
        self._set_penalty(_PENALTY)
        return tuple(taken)

    def _set_penalty(self, each: float) -> None:
        for column, members in self._unplaced.values():
            cost = self._columns[column][0] + (each - _PENALTY) * members
            self._solver.changeColCost(column, cost)

    def _values(self, start: Collection[int]) -> list[float]:
        """Return the values of all columns for a choice of loads; what they leave out is paid."""
        have = np.zeros(len(self._bounds))
        values = np.zeros(len(self._columns))
        for column in start:
            values[column] = 1.0
            for row, value in self._columns[column][1].items():
                have[row] += value
        for j, column in self._moved.items():
            values[column] = 1.0 - have[self._unit[j]]
            have[self._kind[self._facts.kind[j]]] -= values[column]
        for j, column in self._staying.items():
            at = [row for (unit, _), row in self._stay.items() if unit == j]
            values[column] = min(have[row] for row in at)
        for row, (column, _) in self._unplaced.items():
            values[column] = max(self._bounds[row][0] - have[row], 0.0)
        return values.tolist()

    def _row(self, lower: float, upper: float) -> int:
        self._solver.addRow(lower, upper, 0, _NO_INDEX, _NO_VALUE)
        self._bounds.append((lower, upper))
        return len(self._bounds) - 1

    def _column(self, cost: float, terms: Mapping[int, float], upper: float = _INFINITY) -> int:
        index = np.fromiter(terms, np.int32, len(terms))
        value = np.fromiter(terms.values(), np.float64, len(terms))
        self._solver.addCol(cost, 0.0, upper, len(terms), index, value)
        self._columns.append((cost, dict(terms), upper))
        return len(self._columns) - 1
