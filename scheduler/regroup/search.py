"""Searches for a regroup as an anytime algorithm: greedy, then improved, then proven.

It lowers the excess span, then the two disruptions in the order of the objective, then the
displaced idle endpoints, each without raising an earlier one. At every moment there is a plan
and, for every criterion, a lower bound that holds for all plans as good in the earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, isfinite

import numpy as np

from scheduler.model import Objective
from scheduler.regroup.clock import Slice
from scheduler.regroup.counts import (
    MemberLayout,
    RegroupProblem,
    disruption_at_zero_excess,
    least_excess,
)
from scheduler.regroup.improve import greedy, neighbours
from scheduler.regroup.improve.board import Board
from scheduler.regroup.improve.disruption import DisruptionSearch
from scheduler.regroup.improve.swap import swap
from scheduler.regroup.program.exact import Model, Shape
from scheduler.regroup.program.parts import columns_needed
from scheduler.regroup.program.terms import EXCESS, IDLE, MOVES, PAUSED

EPSILON = 1e-6
"""Weighted sums that differ by less are equal."""

_SMALL = 16
"""Endpoints of a site on which one program finds and proves each criterion at once: any search
before it would be slower."""

_COUNTS_UP_TO = 40_000
"""Units times slots of a problem that is solved by counts."""

_MODEL_UP_TO = 100_000
"""Columns of a program in which units are chosen."""

_TOGETHER_SHARE = 0.85
"""Share of the time for the excess span and the first disruption at once."""

_SHARES = 0.7, 1.0
"""Shares of the time that is left for the two disruptions."""

_IDLE_LIMIT_S = 0.25
"""Limit in seconds for lowering the moves of idle endpoints, which pause no job."""

_IDLE_UP_TO = 20_000
"""Columns of a program up to which that is tried."""

_SEED = 20_220_306
"""Seed of the pseudo-random choices: equal input gives equal plans."""


@dataclass(slots=True, frozen=True)
class Found:
    """The best layout, and its proven bounds."""

    layout: MemberLayout
    bounds: dict[str, float]
    """Lower bound per criterion, in its own unit."""
    proven: frozenset[str]
    """Criteria whose value is proven to be the least."""

    @property
    def optimal(self) -> bool:
        """True if no plan is better, apart from idle endpoints."""
        return self.proven >= {EXCESS, PAUSED, MOVES}


class Timer:
    """Measures the time spent: by the caller's clock, otherwise by the solver's run times."""

    def __init__(self, limit_s: float, clock: Callable[[], float] | None) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._started = clock() if clock is not None else 0.0
        self._solver_s = 0.0

    def reserve(self) -> None:
        """Reserve time for the conversion of the result: twice the time spent so far."""
        self._limit_s -= 2 * self.spent()

    def add(self, solver_seconds: float) -> None:
        """Add the solver's run time."""
        self._solver_s += solver_seconds

    def spent(self) -> float:
        """Return the seconds since the start."""
        return self._solver_s if self._clock is None else self._clock() - self._started

    def left(self) -> float:
        """Return the remaining seconds, negative after the end."""
        return self._limit_s - self.spent()

    def share(self, part: float) -> Slice:
        """Return a clock for a part of the remaining time."""
        return Slice(self, self.left() * (1 - part))


class Search:
    """One search; ``run`` returns when all criteria are proven or the time is over."""

    def __init__(self, problem: RegroupProblem, timer: Timer) -> None:
        self._problem = problem
        self.timer = timer
        self._rng = np.random.default_rng(_SEED)
        self._board = greedy.best_board(problem, lambda: timer.left() > 0)
        self._order = [EXCESS, PAUSED, MOVES, IDLE]
        if problem.limits.objective is Objective.MOVES:
            self._order[1], self._order[2] = self._order[2], self._order[1]
        self._floors = dict.fromkeys(self._order, 0.0)
        self._floors[EXCESS] = least_excess(problem)
        self._reached: dict[str, float] = {}

    def run(self) -> Found:
        """Lower the criteria one after the other."""
        if self._problem.endpoints < _SMALL:
            for criterion in self._order:
                if self._improvable(criterion):
                    self._lower_whole(criterion, self.timer.left())
                self._reach(criterion)
            return self._found()
        first = self._together()
        self._lower_excess()
        self.timer.add(swap(self._board, self.timer.left()))
        self._reach(EXCESS)
        for criterion, share in zip(self._order[1:3], _SHARES, strict=True):
            if self._improvable(criterion) and criterion != first and self.timer.left() > 0:
                self._lower_disruption(criterion, share)
            if self._improvable(criterion) and not self._parts_are_exact:
                self._lower_whole(criterion, self.timer.left() * share)
            self._reach(criterion)
        if self._value(IDLE) > 0 and columns_needed(self._problem) <= _IDLE_UP_TO:
            self._lower_whole(IDLE, min(_IDLE_LIMIT_S, self.timer.left()))
        self._reach(IDLE)
        return self._found()

    def _reach(self, criterion: str) -> None:
        """Keep the value of a criterion from now on."""
        self._reached[criterion] = self._value(criterion)
        if criterion == EXCESS and self._reached[EXCESS] <= EPSILON:
            moves, paused = disruption_at_zero_excess(self._problem)
            self._raise_floor(MOVES, float(moves))
            self._raise_floor(PAUSED, float(paused))

    def _found(self) -> Found:
        floors = {c: min(floor, self._reached[c]) for c, floor in self._floors.items()}
        proven = frozenset(c for c in floors if self._reached[c] <= floors[c] + EPSILON)
        return Found(self._board.layout, floors, proven)

    def _value(self, criterion: str) -> float:
        board = self._board
        if criterion == IDLE:
            return self._problem.cost(board.layout).idle
        return {
            EXCESS: board.excess,
            PAUSED: board.paused + board.singles,
            MOVES: board.moves + board.singles,
        }[criterion]

    @property
    def _parts_are_exact(self) -> bool:
        """True if the formulation by parts covers all layouts that are as good so far."""
        compact = self._reached.get(EXCESS, 1.0) <= EPSILON
        return compact and all(u.weight > 0 for u in self._problem.units)

    def _improvable(self, criterion: str) -> bool:
        return self._value(criterion) > self._floors[criterion] + EPSILON

    def _lower_excess(self) -> None:
        """Make as many jobs compact as possible."""
        if self._improvable(EXCESS) and self.timer.left() > 0:
            neighbours.consolidate(self._board, self.timer, self._rng)
        for elastic in (True, False):
            if self._improvable(EXCESS) and self.timer.left() > 0:
                self._select_compact(elastic=elastic)
        if self._improvable(EXCESS):
            self._lower_whole(EXCESS, self.timer.left())

    def _select_compact(self, *, elastic: bool) -> None:
        """Select the units that become compact; the others stay or fill the gaps."""
        if columns_needed(self._problem) > _MODEL_UP_TO:
            return
        budget = self._problem.limits.max_moves is not None
        model = Model(self._problem, Shape(compact=False, elastic=elastic, shards=budget))
        outcome = model.minimise(EXCESS, self._board.layout, self.timer.left() / 3)
        self.timer.add(outcome.seconds)
        if elastic:
            self._raise_floor(EXCESS, outcome.bound)
        if outcome.places is not None:
            found = neighbours.completed(self._problem, outcome.places)
            greedy.pull(found, lambda: self.timer.left() > 0)
            self._keep_better(found)

    def _together(self) -> str | None:
        """Lower the excess span and the first disruption at once where loads are quick to generate.

        Returns that criterion, or None if jobs stay scattered. A budget may not allow all of it.
        """
        clock, criterion = self.timer.share(_TOGETHER_SHARE), self._order[1]
        limits = self._problem.limits
        budget = limits.max_moves is not None or limits.max_jobs_paused is not None
        if self._problem.switches == 1 or budget or not self._improvable(EXCESS):
            return None
        search = DisruptionSearch(self._board, criterion, {EXCESS: 0.0}, self._rng, clock)
        if not search.by_loads:
            return None
        search.run(0.0)
        self._keep_better(search.board)
        if self._value(EXCESS) > EPSILON:
            return None
        self._floors[criterion] = search.floor
        return criterion

    def _lower_disruption(self, criterion: str, share: float) -> None:
        """Lower a criterion without raising an earlier one."""
        caps = {c: self._reached[c] for c in self._order[: self._order.index(criterion)]}
        search = DisruptionSearch(self._board, criterion, caps, self._rng, self.timer.share(share))
        search.run(self._floors[criterion])
        self._keep_better(search.board)
        self._floors[criterion] = max(self._floors[criterion], search.floor)

    def _lower_whole(self, criterion: str, seconds: float) -> None:
        """Solve exactly for one criterion by counts, if the problem is small enough."""
        problem = self._problem
        counts = not self._parts_are_exact
        if seconds <= 0 or (counts and len(problem.units) * len(problem.room) > _COUNTS_UP_TO):
            return
        compact = self._reached.get(EXCESS, 1.0) <= EPSILON
        model = Model(problem, Shape(compact=compact, counts=counts))
        for earlier, value in self._reached.items():
            model.at_most(earlier, value)
        outcome = model.minimise(criterion, self._board.layout, seconds)
        self.timer.add(outcome.seconds)
        if outcome.layout is not None:
            self._keep_better(Board(problem, outcome.layout))
        self._raise_floor(criterion, outcome.bound)

    # --- what is known --------------------------------------------------------------------

    def _keep_better(self, found: Board) -> None:
        """Keep a layout if it is valid and better, idle endpoints included."""
        if not found.allowed or found.key > self._board.key:
            return
        if found.key < self._board.key:
            self._board = found
            return
        objective = self._problem.limits.objective
        keys = [self._problem.cost(b.layout).key(objective) for b in (self._board, found)]
        if keys[1] < keys[0]:
            self._board = found

    def _raise_floor(self, criterion: str, bound: float) -> None:
        """Raise the lower bound of a criterion, rounded up if the criterion is an integer."""
        whole = criterion != EXCESS or all(u.weight == round(u.weight) for u in self._problem.units)
        if isfinite(bound) and whole:
            bound = float(ceil(bound - EPSILON))
        self._floors[criterion] = max(self._floors[criterion], bound)
