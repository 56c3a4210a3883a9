"""Implements other ways to defragment, for the same problem and with the same cost.

- *greedy*: this project's own heuristics alone, without a solver.
- *restart*: what systems do that cannot move light, such as the consolidation of KAI or the
  Kubernetes descheduler: scattered jobs are stopped and started again, largest first, on idle
  endpoints under the aggregator that fits best. Running endpoints keep their homes, so it can
  only use idle endpoints, and every restarted job loses its work since the last checkpoint.
- *milp*: the textbook program: the number of members of every job under every aggregator, span
  and moves weighted in one objective, HiGHS with one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scheduler.model import Objective
from scheduler.regroup.counts import Cost, RegroupProblem
from scheduler.regroup.improve import greedy
from scheduler.regroup.program.exact import Model, Shape
from scheduler.regroup.program.terms import EXCESS, MOVES, PAUSED

MILP_COLUMNS = 5_000
"""Limit of units times slots for the textbook program."""


@dataclass(slots=True, frozen=True)
class Result:
    """The result of a rival."""

    excess: float
    paused: int
    moves: int
    seconds: float
    optimal: bool = False

    def document(self) -> dict[str, float | bool]:
        """Return the JSON form."""
        return {
            "excess_span": self.excess,
            "paused_gpus": self.paused,
            "running_moves": self.moves,
            "seconds": round(self.seconds, 4),
            "optimal": self.optimal,
        }


def greedy_alone(problem: RegroupProblem) -> Result:
    """Run only the heuristics."""
    return _timed(lambda: problem.cost(greedy.best_board(problem).layout))


def restart(problem: RegroupProblem) -> Result:
    """Stop scattered jobs and start them on the best idle endpoints. One optical switch only."""
    started = time.perf_counter()
    idle = problem.idle.copy()
    excess, paused = 0.0, 0
    order = sorted(problem.units, key=lambda u: -u.size)
    for unit in order:
        over = problem.span(unit, unit.start, unit.dark) - unit.least
        if not over:
            continue
        for slot, n in unit.start.items():
            idle[slot] += n  # A stopped job leaves its endpoints idle.
        left, taken = unit.size, dict[int, int]()
        while left:
            fits = np.flatnonzero(idle >= left)
            at = int(fits[idle[fits].argmin()]) if len(fits) else int(idle.argmax())
            n = min(left, int(idle[at]))
            taken[at] = taken.get(at, 0) + n
            idle[at] -= n
            left -= n
        after = len(taken) - unit.least
        if after < over:
            excess += unit.weight * after
            paused += unit.size
        else:
            excess += unit.weight * over
            for slot, n in taken.items():
                idle[slot] += n
            for slot, n in unit.start.items():
                idle[slot] -= n
    return Result(excess, paused, paused, time.perf_counter() - started)


def milp(problem: RegroupProblem, time_limit_s: float) -> Result | None:
    """Solve the textbook program without a start; None if it is too large or finds no solution."""
    if len(problem.units) * len(problem.room) > MILP_COLUMNS:
        return None
    started = time.perf_counter()
    model = Model(problem, Shape(compact=False, counts=True))
    second = PAUSED if problem.limits.objective is Objective.PAUSES else MOVES
    outcome = model.minimise_sum({EXCESS: 10.0 * problem.aggregators, second: 1.0}, time_limit_s)
    seconds = time.perf_counter() - started
    if outcome.layout is None or not problem.allows(outcome.layout):
        return None
    cost = problem.cost(outcome.layout)
    value = 10.0 * problem.aggregators * cost.excess + getattr(cost, second)
    proven = value - outcome.bound < 1.0 - 1e-3
    return Result(cost.excess, cost.paused, cost.moves, seconds, proven)


def _timed(run: Callable[[], Cost]) -> Result:
    started = time.perf_counter()
    cost = run()
    return Result(cost.excess, cost.paused, cost.moves, time.perf_counter() - started)
