"""Good regroups without a solver: pull jobs together one by one, or repack them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.regroup.counts import Problem
from scheduler.regroup.improve.board import Board

_PASSES = 4
"""Times the scattered jobs are gone through at most."""

_CLOCK_EVERY = 64
"""Units between two looks at the clock."""


def best_board(problem: Problem, in_time: Callable[[], bool] = lambda: True) -> Board:
    """Return the best layout that the heuristics find; the start when nothing is gained.

    When ``in_time`` turns false, what was found by then stands.
    """
    units = range(len(problem.units))
    board = Board(problem, problem.start)
    scattered = [j for j in units if board.shares[j].excess > 0]
    if not scattered:
        return board
    best = board
    for chosen in (scattered, units):
        trial = regathered(problem, chosen, in_time)
        if trial is None:
            return best
        pull(trial, in_time)
        if trial.allowed and trial.key < best.key:
            best = trial
        if best.excess <= 0:
            return best
    # Budgets forbid to move them all: one by one, as far as it goes.
    pull(board, in_time)
    return min(best, board, key=lambda b: b.key)


def pull(board: Board, in_time: Callable[[], bool] = lambda: True) -> None:
    """Consolidate jobs into free ports, dearest excess first, as long as it pays."""
    units = board.problem.units
    order = sorted(range(len(units)), key=lambda j: (-units[j].weight, -units[j].size, j))
    _improve_each(
        board, [j for j in order if units[j].members], lambda j: board.shares[j].excess > 0, in_time
    )


def polish(board: Board, in_time: Callable[[], bool] = lambda: True) -> None:
    """Move single units to better places as long as that helps."""
    units = [j for j, unit in enumerate(board.problem.units) if unit.members]
    _improve_each(
        board, units, lambda j: bool(board.shares[j].moves or board.shares[j].excess), in_time
    )


def _improve_each(
    board: Board,
    units: Sequence[int],
    wanting: Callable[[int], bool],
    in_time: Callable[[], bool],
) -> None:
    for _ in range(_PASSES):
        improved = False
        for i, j in enumerate(units):
            if i % _CLOCK_EVERY == _CLOCK_EVERY - 1 and not in_time():
                return
            if wanting(j):
                improved |= pull_one(board, j)
        if not improved:
            return


def pull_one(board: Board, j: int) -> bool:
    """Move one unit to the best place there is; tells whether that was better."""
    before, lit, dark = board.key, board.lit[j], board.dark[j]
    board.lift(j)
    board.put(j, *board.fit(j))
    if board.key < before and board.allowed:
        return True
    board.move(j, lit, dark)
    return False


def regathered(
    problem: Problem, chosen: Sequence[int], in_time: Callable[[], bool]
) -> Board | None:
    """Lift some units all at once and put them down again, largest first; None if too late."""
    board = Board(problem, problem.start)
    order = [j for j in chosen if problem.units[j].members]
    order.sort(key=lambda j: -sum(problem.units[j].members.values()))
    for j in order:
        board.lift(j)
    for i, j in enumerate(order):
        if i % _CLOCK_EVERY == _CLOCK_EVERY - 1 and not in_time():
            return None
        board.put(j, *board.fit(j))
    return board
