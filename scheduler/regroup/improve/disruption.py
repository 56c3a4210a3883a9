"""Lowers one disruption at a given excess span: whole programs, loads, then parts of the site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from math import ceil, isfinite

import numpy as np

from scheduler.regroup.clock import SearchClock
from scheduler.regroup.improve import greedy, neighbours
from scheduler.regroup.improve.blocks import AggregatorBlock
from scheduler.regroup.improve.board import Board
from scheduler.regroup.improve.swap import swap
from scheduler.regroup.loads.facts import in_time
from scheduler.regroup.loads.search import LoadSearch
from scheduler.regroup.program.exact import Model, Shape
from scheduler.regroup.program.parts import columns_needed
from scheduler.regroup.program.terms import EXCESS, MOVES

_EPSILON = 1e-6

_SMALL, _LARGE = 3_000, 30_000
"""Columns up to which the whole problem is solved first, and up to which it is solved."""

_HUGE = 300_000
"""Columns beyond which no program of the whole problem is built."""

_WHOLE_SHARES = 0.9, 0.5
"""Share of the time for the whole problem: if it is small, and otherwise."""

_FIRST_SHARE = 0.4
"""The same where loads follow."""

_BOUND_SHARE, _CHOICE_SHARE, _AGAIN_SHARE = 0.6, 0.6, 0.5
"""Share of the time for the bound by loads; of what is left then for their choice on one optical
switch; and for more roundings on several."""

_OTHERS = 4, 6
"""Loads per aggregator besides the relaxation's: on one optical switch, and on several."""

_NEAR = 0.02
"""Distance of a layout from its bound up to which the whole problem is solved before others."""

_RELAX_SHARE = 0.5
"""Share of the time for the linear relaxation."""

_UNITS, _FEWEST, _MOST = 40, 10, 600
"""Units of a part: at first, at least and at most."""

_FEW, _MOST_LOADS = 20, 60
"""The same at first and at most, where parts are improved by loads."""

_QUICK_S, _LIMIT_S = 0.1, 0.6
"""Seconds: parts grow if one is solved sooner; limit for one part."""

_STALLED = 40
"""Largest parts in a row without a better layout after which the search ends."""


class DisruptionSearch:
    """Search for one criterion; ``run`` leaves the result in ``board`` and ``floor``."""

    def __init__(
        self,
        board: Board,
        criterion: str,
        caps: Mapping[str, float],
        rng: np.random.Generator,
        clock: SearchClock,
    ) -> None:
        """``caps`` are the limits of the earlier criteria."""
        self.board = board
        self.floor = 0.0
        self._problem = board.problem
        self._criterion = criterion
        self._caps = dict(caps)
        self._rng = rng
        self._clock = clock
        self.by_loads = self._caps[EXCESS] <= _EPSILON and in_time(self._problem, clock.left())
        scattered = self._caps[EXCESS] > _EPSILON
        # A unit without weight may end anywhere: it must not raise the proven bound.
        free = any(u.weight <= 0 for u in self._problem.units)
        counts = criterion == MOVES or MOVES in caps or self._problem.limits.max_moves is not None
        self._shape = Shape(compact=not scattered, elastic=scattered or free, shards=counts)

    @property
    def _value(self) -> int:
        board = self.board
        return board.singles + (board.moves if self._criterion == MOVES else board.paused)

    @property
    def _compact(self) -> bool:
        return self.board.excess <= self._caps[EXCESS] + _EPSILON

    def _done(self) -> bool:
        good = self._compact and self._value <= self.floor + _EPSILON
        return good or self._clock.left() <= 0

    def _in_time(self) -> bool:
        return self._clock.left() > 0

    def run(self, floor: float) -> None:
        """Search until the floor is reached or the time is over."""
        self.floor = floor
        if columns_needed(self._problem) <= _HUGE and not self._several:
            self._solve_first()
        if self.by_loads:
            self._choose_loads()
            if self._near and columns_needed(self._problem) <= _SMALL:
                self._solve_in_time()
        self._in_parts()
        if columns_needed(self._problem) <= _LARGE:
            self._solve_in_time()

    def _solve_in_time(self) -> None:
        if not self._done():
            self._solve(self._whole, self._clock.left())

    @cached_property
    def _whole(self) -> Model:
        """The program of the whole problem, built when it is first needed."""
        return self._model(self._shape)

    @property
    def _near(self) -> bool:
        return self._value <= (1 + _NEAR) * self.floor

    @property
    def _several(self) -> bool:
        """Whether loads replace programs, whose bounds are weak where parts are vectors."""
        return self.by_loads and self._problem.switches > 1

    def _choose_loads(self) -> None:
        """Choose what every aggregator holds: a bound, and a layout to improve."""
        if self._done():
            return
        caps = {c: value for c, value in self._caps.items() if c != EXCESS}
        several = self._several
        search = LoadSearch(
            self._problem, self._criterion, caps, self._clock, others=_OTHERS[several]
        )
        search.start(self.board.layout)
        seconds = self._clock.left() * _BOUND_SHARE
        search.generate(seconds, floor=self.floor, steady=several)
        self._raise_floor(search.bound)
        if not self._done():
            self._consider(neighbours.completed(self._problem, search.rounded()))
        if not self._done() and not several:
            places = search.choose(self._clock.left() * _CHOICE_SHARE)
            if places is not None:
                self._consider(neighbours.completed(self._problem, places))
        if several:
            until = self._clock.left() * (1 - _AGAIN_SHARE)
            while self._compact and not self._done() and self._clock.left() > until:
                self._consider(neighbours.completed(self._problem, search.rounded(self._rng)))
            search.generate(self._clock.left() * _BOUND_SHARE, floor=self.floor)
            self._raise_floor(search.bound)

    def _solve_first(self) -> None:
        """Relax the program of the whole problem, and solve it where it is not large."""
        model = self._whole
        small = model.size <= _SMALL
        if not small and not self._done():
            self._relax(model)
        far = self.by_loads and not self._near
        if model.size > _LARGE or (far and not small) or self._done():
            return
        share = _FIRST_SHARE if self.by_loads else _WHOLE_SHARES[not small]
        self._solve(model, self._clock.left() * share)
        if self._shape.elastic and not self._done():
            firm = Shape(self._shape.compact, elastic=False, shards=self._shape.shards)
            self._solve(self._model(firm), self._clock.left() * share, proof=False)

    def _relax(self, model: Model) -> None:
        """Solve the linear relaxation; the units it places whole are a good start."""
        relaxed = model.relax(self._criterion, self._clock.left() * _RELAX_SHARE)
        self._clock.add(relaxed.seconds)
        self._raise_floor(relaxed.bound)
        if relaxed.places is not None and not self._done():
            self._consider(neighbours.completed(self._problem, relaxed.places))

    def _model(self, shape: Shape) -> Model:
        model = Model(self._problem, shape)
        for cap, value in self._caps.items():
            model.at_most(cap, value)
        return model

    def _raise_floor(self, bound: float) -> None:
        if isfinite(bound):
            self.floor = max(self.floor, float(ceil(bound - _EPSILON)))

    def _consider(self, found: Board) -> None:
        """Repair a layout that may have scattered units, and keep it if it is better."""
        greedy.pull(found, self._in_time)
        if found.excess > self._caps[EXCESS] + _EPSILON:
            neighbours.consolidate(found, self._clock, self._rng)
        self._clock.add(swap(found, self._clock.left()))
        greedy.polish(found, self._in_time)
        if found.allowed and found.key < self.board.key:
            self.board = found

    def _solve(self, model: Model, seconds: float, *, proof: bool = True) -> None:
        """Solve the whole problem; units without a place fill the gaps."""
        outcome = model.minimise(self._criterion, self.board.layout, seconds)
        self._clock.add(outcome.seconds)
        if proof:
            self._raise_floor(outcome.bound)
        if outcome.layout is not None:
            found = Board(self._problem, outcome.layout)
            self._clock.add(swap(found, self._clock.left()))
            if found.allowed and found.key < self.board.key:
                self.board = found
        elif outcome.places is not None:
            self._consider(neighbours.completed(self._problem, outcome.places))

    def _in_parts(self) -> None:
        """Improve the units around one moved unit, then around the next."""
        wanted, stalled = float(_FEW if self.by_loads else _UNITS), 0
        under = _UnitsByAggregator(self.board)
        while not self._done() and stalled < _STALLED:
            if not self._compact:
                neighbours.consolidate(self.board, self._clock, self._rng)
                under = _UnitsByAggregator(self.board)
            inside, units = self._around(under, int(wanted))
            all_units = len(units) == len(under.places)
            before, seconds = self._value, 0.0
            if units:
                block = AggregatorBlock(self.board, inside, units)
                left = self._clock.left()
                if self.by_loads:
                    block.reload(self._criterion, self._caps.keys() - {EXCESS}, self._clock)
                else:
                    limit_s = min(_LIMIT_S, left)
                    self._clock.add(block.improve(self._criterion, self._caps, limit_s))
                seconds = left - self._clock.left()
                under.update(units)
            most = _MOST_LOADS if self.by_loads else _MOST
            largest = all_units or wanted >= most
            stalled = stalled + 1 if largest and self._value >= before else 0
            if all_units and seconds < _LIMIT_S:
                return
            if seconds < _QUICK_S:
                wanted = min(wanted * 1.3, most)
            elif seconds >= _LIMIT_S:
                wanted = max(wanted * 0.7, _FEWEST)

    def _around(self, under: _UnitsByAggregator, wanted: int) -> tuple[list[int], list[int]]:
        """Return the aggregators around a moved unit, and the compact units under them."""
        board, width = self.board, self._problem.aggregators
        chosen: dict[int, None] = {}
        moved = int(self._rng.integers(len(board.shares)))
        if board.shares[moved].moves:
            near = {s % width for s in (*board.lit[moved], *self._problem.units[moved].start)}
            chosen = dict.fromkeys(self._rng.permutation(sorted(near)).tolist())
        chosen |= dict.fromkeys(self._rng.permutation(width).tolist())
        units: dict[int, None] = {}
        inside: set[int] = set()
        for a in chosen:
            if len(units) >= wanted:
                break
            units |= dict.fromkeys(under.units[a])
            inside.add(a)
        for j in units:
            inside |= under.places[j]
        return sorted(inside), sorted(units)


class _UnitsByAggregator:
    """Index of compact units by aggregator."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.units: list[dict[int, None]] = [{} for _ in range(board.problem.aggregators)]
        self.places: dict[int, set[int]] = {}
        for j, unit in enumerate(board.problem.units):
            if unit.members and board.shares[j].excess <= _EPSILON:
                self.places[j] = set()
        self.update(self.places)

    def update(self, units: Iterable[int]) -> None:
        """Update the places of these units."""
        width = self._board.problem.aggregators
        for j in units:
            for a in self.places[j]:
                del self.units[a][j]
            held = self._board.problem.units[j].held
            self.places[j] = {slot % width for slot in self._board.lit[j]} | held
            for a in self.places[j]:
                self.units[a][j] = None
