"""Finds good regroups without a solver: consolidates jobs one by one, or repacks them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.regroup.counts import RegroupProblem
from scheduler.regroup.improve.board import Board

_PASSES = 4
"""Limit of passes over the scattered jobs."""

_CLOCK_EVERY = 64
"""Units between two checks of the clock."""


def best_board(problem: RegroupProblem, in_time: Callable[[], bool] = lambda: True) -> Board:
    """Return the best layout that the heuristics find; the start if none is better.

    The search ends when ``in_time`` becomes false.
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
    # The budgets do not allow moving them all: one by one, up to the budgets.
    pull(board, in_time)
    return min(best, board, key=lambda b: b.key)


def pull(board: Board, in_time: Callable[[], bool] = lambda: True) -> None:
    """Consolidate jobs into free ports, largest weight first, while that improves the layout."""
    units = board.problem.units
    order = sorted(range(len(units)), key=lambda j: (-units[j].weight, -units[j].size, j))
    _improve_each(
        board, [j for j in order if units[j].members], lambda j: board.shares[j].excess > 0, in_time
    )


def polish(board: Board, in_time: Callable[[], bool] = lambda: True) -> None:
    """Move single units to better places while that improves the layout."""
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
    """Move one unit to its best place; returns whether the layout improved."""
    before, lit, dark = board.key, board.lit[j], board.dark[j]
    board.lift(j)
    board.put(j, *board.fit(j))
    if board.key < before and board.allowed:
        return True
    board.move(j, lit, dark)
    return False


def regathered(
    problem: RegroupProblem, chosen: Sequence[int], in_time: Callable[[], bool]
) -> Board | None:
    """Lift some units at once and put them down again, largest first; None if out of time."""
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
