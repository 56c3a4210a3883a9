"""Consolidates the last scattered units by solving a small exact problem around each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.model import Objective
from scheduler.regroup.clock import SearchClock
from scheduler.regroup.counts import Counts, RegroupProblem
from scheduler.regroup.improve.blocks import AggregatorBlock, units_inside
from scheduler.regroup.improve.board import Board
from scheduler.regroup.loads.facts import applies
from scheduler.regroup.program.exact import Model, Shape
from scheduler.regroup.program.terms import EXCESS, MOVES, PAUSED

_AROUND = 16
"""Aggregators of a neighbourhood."""

_ROUNDS = 3
"""Limit of passes over the scattered units."""

_LIMIT_S = 1.0
"""Limit in seconds for one neighbourhood."""


def completed(problem: RegroupProblem, places: Sequence[tuple[Counts, Counts] | None]) -> Board:
    """Put units at their places; the others stay if they can, or fill the gaps."""
    board = Board(problem, problem.start)
    order = [j for j, unit in enumerate(problem.units) if unit.members]
    for j in order:
        board.lift(j)
    rest = []
    for j in order:
        place = places[j]
        if place is None:
            rest.append(j)
        else:
            board.put(j, *place)
    rest.sort(key=lambda j: -sum(problem.units[j].members.values()))
    for j in rest:
        board.put(j, *board.fit(j))
    return board


def consolidate(board: Board, clock: SearchClock, rng: np.random.Generator) -> None:
    """Solve around every scattered unit until the layout no longer improves."""
    units = board.problem.units
    for _ in range(_ROUNDS):
        improved = False
        order = [j for j in range(len(units)) if board.shares[j].excess > 0 and units[j].members]
        order.sort(key=lambda j: (-units[j].weight, units[j].size))
        for j in order:
            if clock.left() <= 0:
                return
            if board.shares[j].excess > 0:
                improved |= _consolidate_around(board, j, clock, rng)
        if not improved:
            return


def _consolidate_around(board: Board, j: int, clock: SearchClock, rng: np.random.Generator) -> bool:
    """Repack a neighbourhood so that the fewest of its units are scattered."""
    first = MOVES if board.problem.limits.objective is Objective.MOVES else PAUSED
    around = _around(board, j, _AROUND, rng)
    block = AggregatorBlock(board, around, units_inside(board, around))
    if applies(block.problem):
        if block.reload(first, (), clock):
            return True
        around = _around(board, j, 2 * _AROUND, rng)
        return AggregatorBlock(board, around, units_inside(board, around)).reload(first, (), clock)
    model = Model(block.problem, Shape(compact=False, elastic=True))
    outcome = model.minimise(EXCESS, block.layout, min(_LIMIT_S, clock.left()))
    clock.add(outcome.seconds)
    return outcome.places is not None and block.repack(outcome.places)


def _around(board: Board, j: int, width: int, rng: np.random.Generator) -> list[int]:
    """Return the aggregators of a unit, and those that lack fewest ports to hold it."""
    problem, unit = board.problem, board.problem.units[j]
    chosen = {slot % problem.aggregators: None for slot in board.lit[j]}
    chosen |= dict.fromkeys(unit.held)
    free = problem.by_switch(board.free)
    missing = np.zeros(problem.aggregators, np.int64)
    for k, n in unit.members.items():
        here = np.zeros(problem.aggregators, np.int64)
        for slot, count in board.lit[j].items():
            if slot // problem.aggregators == k:
                here[slot % problem.aggregators] += count
        missing += np.maximum(-(-n // max(unit.least, 1)) - free[k] - here, 0)
    # Random ties: another pass tries other aggregators.
    order = np.lexsort((rng.random(problem.aggregators), missing))
    for a in order.tolist():
        if len(chosen) >= max(width, len(board.lit[j]) + unit.least):
            break
        chosen[a] = None
    return sorted(chosen)
