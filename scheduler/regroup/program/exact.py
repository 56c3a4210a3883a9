"""Models the regroup problem as a mixed integer program, in counts.

``scheduler.regroup.program.parts`` and ``scheduler.regroup.program.terms`` formulate the units.
In addition every slot has ``out[slot]``, displaced one-endpoint jobs, and ``over[slot]``,
displaced idle endpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.program import Solved, solve
from scheduler.regroup.counts import Counts, MemberLayout, RegroupProblem
from scheduler.regroup.program.parts import PartColumns, PartPool, part_sizes, read
from scheduler.regroup.program.terms import EXCESS, IDLE, MOVES, PAUSED, CountColumns, Terms


@dataclass(slots=True, frozen=True)
class Shape:
    """What a model requires and leaves out."""

    compact: bool = True
    """Every unit of positive weight must end with zero excess span."""
    elastic: bool = False
    """A unit may be left out for at most the cost of any place that is not compact: the result
    is not a plan, but its bound covers plans that reduce excess span only in part."""
    shards: bool = True
    """Members that can stay are distinguished; without it the moves mean nothing."""
    counts: bool = False
    """Formulate every unit by counts: this covers all layouts, which parts may not."""


@dataclass(slots=True, frozen=True)
class SolveResult:
    """The result of one solve."""

    places: Sequence[tuple[Counts, Counts] | None] | None
    """(lit, dark) per unit of the best layout found, None for a unit that is left out or
    incomplete; None if no layout was found."""
    bound: float
    """Lower bound of the criterion within the model, -inf without one."""
    seconds: float
    """The solver's own run time."""

    @property
    def layout(self) -> MemberLayout | None:
        """The layout, None unless every unit has a place in it."""
        if self.places is None:
            return None
        whole = [place for place in self.places if place is not None]
        if len(whole) < len(self.places):
            return None
        return MemberLayout([lit for lit, _ in whole], [dark for _, dark in whole])


class Model:
    """One problem, solved for one criterion after the other."""

    def __init__(
        self,
        problem: RegroupProblem,
        shape: Shape,
        allowed: Sequence[Collection[int]] | None = None,
    ) -> None:
        """Build the rows.

        ``allowed[j]`` are the aggregators where unit j may have members if it is formulated by
        counts; None is all. Bounds are proven only if the model covers all relevant layouts.
        """
        self._problem = problem
        self._terms = Terms(problem)
        self._pool = PartPool(self._terms)
        self._out: dict[int, int] = {}
        self._over: dict[int, int] = {}
        self._counted: dict[int, CountColumns] = {}
        self._parted: dict[int, PartColumns] = {}
        everywhere = range(problem.aggregators)
        for j, unit in enumerate(problem.units):
            if not shape.counts and part_sizes(problem, unit):
                self._parted[j] = PartColumns(
                    self._pool,
                    unit,
                    compact=shape.compact,
                    elastic=shape.elastic,
                    shards=shape.shards,
                )
            else:
                places = everywhere if allowed is None else allowed[j]
                rigid = shape.compact and not shape.elastic
                self._counted[j] = CountColumns(self._terms, unit, places, compact=rigid)
        self._pool.close()
        self._add_ports()
        self._add_dark()
        self._add_limits()

    @property
    def size(self) -> int:
        """Columns of the program."""
        return len(self._terms.program.upper)

    def _add_ports(self) -> None:
        problem, program, costs = self._problem, self._terms.program, self._terms.costs
        for slot, terms in self._terms.used.items():
            room, single = int(problem.room[slot]), int(problem.single[slot])
            idle = int(problem.idle[slot])
            out: dict[int, float] = {}
            if single:
                column = self._out[slot] = program.column(single, integer=False)
                out[column] = -1.0
                costs[MOVES][column] = costs[PAUSED][column] = 1.0
                self._terms.jobs[column] = 1.0
            program.row({**terms, **out}, -np.inf, room - single)
            if idle:
                over = self._add_over(slot)
                program.row({**terms, **out, over: -1.0}, -np.inf, room - single - idle)

    def _add_over(self, slot: int) -> int:
        idle = int(self._problem.idle[slot])
        over = self._over[slot] = self._terms.program.column(idle, integer=False)
        self._terms.costs[IDLE][over] = 1.0
        return over

    def _add_dark(self) -> None:
        """Limit the dark members that are lit by the ports; idle endpoints are displaced."""
        problem, program, width = self._problem, self._terms.program, self._problem.aggregators
        for k in range(problem.switches):
            dark = {c: float(n) for at, c, n in self._terms.lights if at == k}
            total = sum(u.dark.get(k, 0) for u in problem.units)
            if total > problem.spare[k]:
                program.row(dark, float(total - problem.spare[k]), np.inf)
            slots = [s for s in range(k * width, (k + 1) * width) if problem.idle[s]]
            if total and slots:
                over = {self._over[s] if s in self._over else self._add_over(s): 1.0 for s in slots}
                short = total + int(problem.idle[slots].sum()) - int(problem.spare[k])
                program.row({**over, **dark}, float(short), np.inf)

    def _add_limits(self) -> None:
        problem, limits, terms = self._problem, self._problem.limits, self._terms
        if limits.max_moves is not None:
            most = limits.max_moves - terms.constants[MOVES]
            terms.program.row(terms.costs[MOVES], -np.inf, most)
        if limits.max_jobs_paused is not None:
            most = limits.max_jobs_paused - terms.jobs_constant
            terms.program.row(terms.jobs, -np.inf, most)
        if any(u.weight != u.all_weight for u in problem.units):
            most = problem.excess_limit - terms.total_constant + 1e-6
            terms.program.row(terms.total, -np.inf, most)

    def at_most(self, criterion: str, value: float) -> None:
        """Keep a criterion at its value while the next one is lowered."""
        terms = self._terms
        slack = 1e-6 if criterion == EXCESS else 0.0
        limit = value - terms.constants[criterion] + slack
        terms.program.row(terms.costs[criterion], -np.inf, limit)

    def minimise(
        self, criterion: str, incumbent: MemberLayout | None, time_limit_s: float
    ) -> SolveResult:
        """Minimise one criterion within the limit, starting from a known layout if given."""
        guess = None if incumbent is None else self._columns(incumbent)
        return self._outcome(self._solve(criterion, time_limit_s, guess, relaxed=False))

    def minimise_sum(self, weights: Mapping[str, float], time_limit_s: float) -> SolveResult:
        """Minimise the weighted sum of several criteria."""
        terms = self._terms
        objective: dict[int, float] = {}
        for criterion, weight in weights.items():
            for column, cost in terms.costs[criterion].items():
                objective[column] = objective.get(column, 0.0) + weight * cost
        offset = sum(weight * terms.constants[c] for c, weight in weights.items())
        nodes = self._problem.search_nodes
        return self._outcome(solve(terms.program, objective, offset, time_limit_s, nodes=nodes))

    def relax(self, criterion: str, time_limit_s: float) -> SolveResult:
        """Solve the linear relaxation; units with fractional values have no place."""
        return self._outcome(self._solve(criterion, time_limit_s, None, relaxed=True))

    def _solve(
        self, criterion: str, time_limit_s: float, guess: list[float] | None, *, relaxed: bool
    ) -> Solved:
        terms = self._terms
        return solve(
            terms.program,
            terms.costs[criterion],
            terms.constants[criterion],
            time_limit_s,
            guess=guess,
            relaxed=relaxed,
            # Counts are integers: a gap below one between plan and bound is a proof.
            gap=1e-6 if criterion == EXCESS else 1.0 - 1e-3,
            nodes=self._problem.search_nodes,
        )

    def _outcome(self, solved: Solved) -> SolveResult:
        values = solved.values
        if values is None:
            return SolveResult(None, solved.bound, solved.seconds)
        parted = iter(read(self._pool, list(self._parted.values()), values))
        places = [
            self._counted[j].read(values) if j in self._counted else next(parted)
            for j in range(len(self._problem.units))
        ]
        return SolveResult(places, solved.bound, solved.seconds)

    def _columns(self, layout: MemberLayout) -> list[float] | None:
        """Return the column values of a known layout, None if the model does not cover it."""
        problem = self._problem
        values = [0.0] * self.size
        used = problem.used(layout)
        for j, (lit, dark) in enumerate(zip(layout.lit, layout.dark, strict=True)):
            if j in self._counted:
                known = self._counted[j].fill(values, lit, dark)
            else:
                known = self._parted[j].fill(values, self._pool, lit, dark)
            if not known:
                return None
        for slot, column in self._out.items():
            values[column] = float(max(used[slot] + problem.single[slot] - problem.room[slot], 0))
        for slot, column in self._over.items():
            staying = min(problem.single[slot], problem.room[slot] - used[slot])
            crowded = used[slot] + staying + problem.idle[slot] - problem.room[slot]
            values[column] = float(max(crowded, 0))
        return values
