"""Re-places some units optimally while all others stay.

A block is a part of the problem as a problem of its own: some units and some aggregators.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from scheduler.model import Limits
from scheduler.regroup.clock import SearchClock
from scheduler.regroup.counts import Counts, JobUnit, MemberLayout, RegroupProblem
from scheduler.regroup.improve.board import Board
from scheduler.regroup.loads.search import LoadSearch
from scheduler.regroup.program.exact import Model, Shape
from scheduler.regroup.program.terms import EXCESS, MOVES, PAUSED

_OTHERS = 24
"""Loads of a block per aggregator besides the relaxation's."""

_LOADS_S = 0.4
"""Limit in seconds for the loads of a block, and for their choice."""


class AggregatorBlock:
    """Some aggregators of a board, and some units that are only under these."""

    def __init__(self, board: Board, aggregators: Sequence[int], units: Sequence[int]) -> None:
        self._board = board
        self._units = units
        self._inside = {a: i for i, a in enumerate(aggregators)}
        self._slots = np.array(
            [
                k * board.problem.aggregators + a
                for k in range(board.problem.switches)
                for a in aggregators
            ],
            np.int64,
        )
        self.problem = self._part()
        self.layout = MemberLayout(
            [self._narrow(board.lit[j]) for j in units], [board.dark[j] for j in units]
        )

    def _narrow(self, lit: Counts) -> dict[int, int]:
        """Return the part of a place inside the block, in the block's slots."""
        width, inside = self._board.problem.aggregators, self._inside
        narrow = {}
        for slot, n in lit.items():
            k, a = divmod(slot, width)
            i = inside.get(a)
            if i is not None:
                narrow[k * len(inside) + i] = n
        return narrow

    def _widen(self, lit: Counts) -> dict[int, int]:
        return {int(self._slots[slot]): n for slot, n in lit.items()}

    def _part(self) -> RegroupProblem:
        """Return the block as a problem; costs still refer to the start of the whole problem."""
        board, problem = self._board, self._board.problem
        room = board.free[self._slots].copy()
        spare = problem.spare - board.lit_up
        single = problem.single[self._slots]
        singles = int(np.maximum(single - room, 0).sum())
        moves = board.moves + board.singles - singles
        jobs = board.jobs + board.singles - singles
        total = board.total_excess
        units: list[JobUnit] = []
        for j in self._units:
            unit, share = problem.units[j], board.shares[j]
            for slot, n in self._narrow(board.lit[j]).items():
                room[slot] += n
            for k, n in unit.dark.items():
                spare[k] += n - board.dark[j].get(k, 0)
            moves, jobs, total = moves - share.moves, jobs - share.jobs, total - share.total_excess
            held = frozenset(self._inside[a] for a in unit.held)
            caps = {self._inside[a]: n for a, n in unit.exceptions.items() if a in self._inside}
            start = self._narrow(unit.start)
            units.append(replace(unit, start=start, held=held, exceptions=caps))
        limits = problem.limits
        return RegroupProblem(
            limits=Limits(
                limits.objective,
                None if limits.max_jobs_paused is None else limits.max_jobs_paused - jobs,
                None if limits.max_moves is None else limits.max_moves - moves,
                limits.time_limit_s,
            ),
            units=tuple(units),
            switches=problem.switches,
            aggregators=len(self._inside),
            room=room,
            single=single,
            idle=problem.idle[self._slots],
            spare=spare,
            excess_limit=problem.excess_limit - total,
            endpoints=problem.endpoints,
            search_nodes=problem.search_nodes,
        )

    def improve(self, criterion: str, caps: Iterable[str], time_limit_s: float) -> float:
        """Lower one criterion without raising an earlier one; returns the solver's seconds.

        Units that may not be scattered stay compact.
        """
        cost = self.problem.cost(self.layout)
        values = {EXCESS: cost.excess, PAUSED: float(cost.paused), MOVES: float(cost.moves)}
        width = len(self._inside)
        # Units that parts do not cover may use their present aggregators and those at the start.
        allowed = [
            {slot % width for slot in (*unit.start, *lit)}
            for unit, lit in zip(self.problem.units, self.layout.lit, strict=True)
        ]
        caps = tuple(caps)
        limited = self.problem.limits.max_moves is not None
        shape = Shape(shards=limited or MOVES in (criterion, *caps))
        model = Model(self.problem, shape, allowed)
        for cap in caps:
            model.at_most(cap, values[cap])
        outcome = model.minimise(criterion, self.layout, time_limit_s)
        self._apply_if_better(outcome.layout)
        return outcome.seconds

    def reload(self, criterion: str, caps: Iterable[str], clock: SearchClock) -> bool:
        """Choose what every aggregator holds; returns whether that made the board better.

        ``scheduler.regroup.loads.facts.applies`` must hold for the block. Scattered units come
        together where that is possible.
        """
        cost = self.problem.cost(self.layout)
        values = {PAUSED: float(cost.paused), MOVES: float(cost.moves)}
        search = LoadSearch(self.problem, criterion, {c: values[c] for c in caps}, clock, _OTHERS)
        search.start(self.layout)
        search.generate(min(_LOADS_S, clock.left()), steady=True)
        places = search.choose(min(_LOADS_S, clock.left()))
        return places is not None and self.repack(places)

    def _apply_if_better(self, layout: MemberLayout | None) -> None:
        """Put a layout on the board if it is valid and better than the present one."""
        if layout is None or not self.problem.allows(layout):
            return
        objective = self.problem.limits.objective
        before = self.problem.cost(self.layout).key(objective)
        if self.problem.cost(layout).key(objective) < before:
            for j in self._units:
                self._board.lift(j)
            for j, lit, dark in zip(self._units, layout.lit, layout.dark, strict=True):
                self._board.put(j, self._widen(lit), dark)

    def repack(self, places: Sequence[tuple[Counts, Counts] | None]) -> bool:
        """Put units at their places and the others into gaps; returns whether it was better."""
        board = self._board
        before = board.key
        old = [(board.lit[j], board.dark[j]) for j in self._units]
        for j in self._units:
            board.lift(j)
        rest = []
        for j, place in zip(self._units, places, strict=True):
            if place is None:
                rest.append(j)
            else:
                board.put(j, self._widen(place[0]), place[1])
        for j in rest:
            board.put(j, *board.fit(j))
        if board.key < before and board.allowed:
            return True
        for j in self._units:
            board.lift(j)
        for j, (lit, dark) in zip(self._units, old, strict=True):
            board.put(j, lit, dark)
        return False


def units_inside(board: Board, aggregators: Iterable[int]) -> list[int]:
    """Return the units with all members under these aggregators."""
    width, inside = board.problem.aggregators, frozenset(aggregators)
    return [
        j
        for j, unit in enumerate(board.problem.units)
        if unit.members
        and inside.issuperset(slot % width for slot in board.lit[j])
        and inside >= unit.held
    ]
