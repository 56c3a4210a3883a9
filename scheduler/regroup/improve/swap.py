"""Swaps places of units of equal size so that as many members as possible stay.

A layout has a number of parts of each size under each aggregator. Which unit gets which part does
not affect other units. It is an assignment problem: its linear relaxation is integral.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from scheduler.program import Program, solve
from scheduler.regroup.counts import Counts
from scheduler.regroup.improve.board import Board
from scheduler.regroup.program.parts import Vector


def swap(board: Board, time_limit_s: float) -> float:
    """Reassign the parts of all moved compact units; returns the solver's seconds."""
    problem, width = board.problem, board.problem.aggregators
    slots: dict[Vector, Counter[int]] = defaultdict(Counter)
    wanted: dict[Vector, dict[int, int]] = defaultdict(dict)
    for j, unit in enumerate(problem.units):
        share = board.shares[j]
        # Of a unit that must be apart, two parts could come to one place.
        fixed = unit.held or unit.most is not None
        if not share.paused or share.excess or board.dark[j] or fixed:
            continue
        for a, vector in _parts(board.lit[j], width):
            slots[vector][a] += 1
            wanted[vector][j] = wanted[vector].get(j, 0) + 1
    seconds = 0.0
    placed: dict[int, dict[int, int]] = defaultdict(dict)
    for vector, units in wanted.items():
        if time_limit_s - seconds <= 0:
            return seconds
        taken, spent = _assign(board, vector, units, slots[vector], time_limit_s - seconds)
        seconds += spent
        for j, places in taken.items():
            for a in places:
                placed[j] |= {k * width + a: n for k, n in vector}
    before = board.key
    old = {j: board.lit[j] for j in placed}
    for j in placed:
        board.lift(j)
    for j, new in placed.items():
        board.put(j, new, {})
    if board.key > before or not board.allowed:
        for j in placed:
            board.lift(j)
        for j, was in old.items():
            board.put(j, was, {})
    return seconds


def _parts(lit: Counts, width: int) -> list[tuple[int, Vector]]:
    at: dict[int, list[tuple[int, int]]] = {}
    for slot, n in sorted(lit.items()):
        at.setdefault(slot % width, []).append((slot // width, n))
    return [(a, tuple(vector)) for a, vector in at.items()]


def _assign(
    board: Board,
    vector: Vector,
    units: dict[int, int],
    slots: Counter[int],
    time_limit_s: float,
) -> tuple[dict[int, list[int]], float]:
    """Return the aggregators of every unit's parts of one size."""
    width = board.problem.aggregators
    program = Program()
    saved: dict[int, float] = {}
    columns: dict[tuple[int, int], int] = {}
    per_slot: dict[int, dict[int, float]] = defaultdict(dict)
    for j, count in units.items():
        start = board.problem.units[j].start
        row: dict[int, float] = {}
        for a in sorted({slot % width for slot in start} & slots.keys()):
            kept = sum(min(n, start.get(k * width + a, 0)) for k, n in vector)
            column = columns[j, a] = program.column(1.0, integer=False)
            saved[column] = -float(kept)
            row[column] = per_slot[a][column] = 1.0
        if row:
            program.row(row, 0.0, float(count))
    for a, row in per_slot.items():
        program.row(row, 0.0, float(slots[a]))
    taken: dict[int, list[int]] = {j: [] for j in units}
    left, seconds = Counter(slots), 0.0
    if columns:
        solved = solve(
            program,
            saved,
            0.0,
            time_limit_s,
            relaxed=True,
            nodes=board.problem.search_nodes,
        )
        seconds = solved.seconds
        if solved.values is not None:
            for (j, a), column in columns.items():
                if solved.values[column] > 0.5 and left[a]:
                    taken[j].append(a)
                    left[a] -= 1
    free = list(left.elements())
    for j, count in units.items():
        for _ in range(count - len(taken[j])):
            # Never two parts of a unit at one place: it would have fewer places than it needs.
            at = next((i for i, a in enumerate(free) if a not in taken[j]), 0)
            taken[j].append(free.pop(at))
    return taken, seconds
