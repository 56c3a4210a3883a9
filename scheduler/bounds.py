"""Lower bounds that hold for every plan, whatever the search looked at."""

from __future__ import annotations

from scheduler.counts import Problem, least_moves


def least_excess(problem: Problem) -> float:
    """Return the weighted excess span that not even unlimited moves could undercut."""
    return sum(u.weight * max(u.base_span - u.least, 0) for u in problem.units)


def disruption_at_zero_excess(problem: Problem) -> tuple[int, int]:
    """Return (running moves, paused endpoints) that any plan with zero excess span needs.

    LB1: a job that ends compact keeps at most its largest shards in place. Only jobs that
    count in the objective have to end compact.
    """
    moves = paused = 0
    for unit in problem.units:
        if unit.weight > 0 and problem.span(unit, unit.start, unit.dark) > unit.least:
            moves += unit.price * least_moves(problem, unit)
            paused += unit.price * unit.size
    return moves, paused
