"""Keeps a layout under construction: units are lifted and put down, the cost is updated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.model import Objective
from scheduler.regroup.counts import (
    Counts,
    Ints,
    JobUnit,
    MemberLayout,
    RegroupProblem,
    moved_members,
)

_FIELD = 1 << 15
"""More than twice the ports of any aggregator: scales lexicographic keys."""

Key = tuple[float, int, int]
"""Weighted excess, then the two disruptions in the order of the objective."""


@dataclass(slots=True, frozen=True)
class Share:
    """The share of one unit in the cost."""

    excess: float
    total_excess: float
    moves: int
    paused: int
    jobs: int


_NOTHING = Share(0.0, 0.0, 0, 0, 0)


class Board:
    """The place of every unit, the free ports, and the totals of the cost."""

    def __init__(self, problem: RegroupProblem, layout: MemberLayout) -> None:
        self.problem = problem
        self.lit: list[Counts] = list(layout.lit)
        self.dark: list[Counts] = list(layout.dark)
        self.free: Ints = problem.room - problem.used(layout)
        """Ports without a unit, per slot; one-endpoint jobs on them can be displaced."""
        self.singles = int(np.maximum(problem.single - self.free, 0).sum())
        """Displaced one-endpoint jobs."""
        self.shares = [
            self.share(j, lit, dark)
            for j, (lit, dark) in enumerate(zip(self.lit, self.dark, strict=True))
        ]
        self.excess = sum(s.excess for s in self.shares)
        self.total_excess = sum(s.total_excess for s in self.shares)
        self.moves = sum(s.moves for s in self.shares)
        self.paused = sum(s.paused for s in self.shares)
        self.jobs = sum(s.jobs for s in self.shares)
        self.cut = 0
        """Members that were lit and are dark now: not allowed."""
        self.lit_up: Ints = np.zeros(problem.switches, np.int64)
        for j, dark in enumerate(self.dark):
            self._count_dark(j, dark, 1)

    @property
    def layout(self) -> MemberLayout:
        """The present layout."""
        return MemberLayout(list(self.lit), list(self.dark))

    @property
    def key(self) -> Key:
        """The lexicographic objective without idle endpoints."""
        first, second = self.paused + self.singles, self.moves + self.singles
        if self.problem.limits.objective is Objective.MOVES:
            first, second = second, first
        return round(self.excess, 6), first, second

    @property
    def allowed(self) -> bool:
        """True if ports suffice and budgets and the excess limit hold."""
        problem, limits = self.problem, self.problem.limits
        return (
            (limits.max_moves is None or self.moves + self.singles <= limits.max_moves)
            and (
                limits.max_jobs_paused is None or self.jobs + self.singles <= limits.max_jobs_paused
            )
            and self.total_excess <= problem.excess_limit + 1e-6
            and not self.cut
            and not (self.lit_up > problem.spare).any()
        )

    def share(self, j: int, lit: Counts, dark: Counts) -> Share:
        """Return the cost of a unit at a place."""
        unit = self.problem.units[j]
        over = self.problem.span(unit, lit, dark) - unit.least
        moved = moved_members(unit, lit, dark)
        return Share(
            unit.weight * over,
            unit.all_weight * over,
            moved,
            unit.size if moved else 0,
            int(moved > 0),
        )

    def lift(self, j: int) -> None:
        """Remove a unit from its place."""
        self._account(j, self.lit[j], _NOTHING, -1)
        self._count_dark(j, self.dark[j], -1)

    def put(self, j: int, lit: Counts, dark: Counts) -> None:
        """Put a lifted unit at a place."""
        self.lit[j], self.dark[j] = lit, dark
        self._account(j, lit, self.share(j, lit, dark), 1)
        self._count_dark(j, dark, 1)

    def move(self, j: int, lit: Counts, dark: Counts) -> None:
        """Move a unit to another place."""
        self.lift(j)
        self.put(j, lit, dark)

    def _account(self, j: int, lit: Counts, share: Share, sign: int) -> None:
        free, single = self.free, self.problem.single
        for slot, n in lit.items():
            before = int(free[slot])
            after = before - sign * n
            free[slot] = after
            alone = int(single[slot])
            if alone:
                self.singles += max(alone - after, 0) - max(alone - before, 0)
        old = self.shares[j]
        self.shares[j] = share
        self.excess += share.excess - old.excess
        self.total_excess += share.total_excess - old.total_excess
        self.moves += share.moves - old.moves
        self.paused += share.paused - old.paused
        self.jobs += share.jobs - old.jobs

    def _count_dark(self, j: int, dark: Counts, sign: int) -> None:
        before = self.problem.units[j].dark
        for k, n in before.items():
            self.lit_up[k] += sign * (n - dark.get(k, 0))
        self.cut += sign * sum(max(n - before.get(k, 0), 0) for k, n in dark.items())

    def fit(self, j: int, among: Ints | None = None) -> tuple[Counts, Counts]:
        """Find a place for a lifted unit: few aggregators, then little disruption, then tight.

        ``among`` restricts the aggregators. Members without a port stay dark.
        """
        window = _Window(self, self.problem.units[j], among)
        while window.missing:
            if not window.fill():
                break
        return window.lit, window.dark


class _Window:
    """The aggregators that one unit may use, while its place is constructed."""

    def __init__(self, board: Board, unit: JobUnit, among: Ints | None) -> None:
        problem = board.problem
        self._width = problem.aggregators
        self._count_moves = problem.limits.objective is Objective.MOVES
        self._held = unit.held
        self._switches = [k for k in range(problem.switches) if k in unit.members]
        self._columns: Sequence[int] = range(self._width)
        free = problem.by_switch(board.free)
        slack = free - problem.by_switch(problem.single)
        if among is not None:
            self._columns = among.tolist()
            free, slack = free[:, among], slack[:, among]
        self._free, self._slack = free[self._switches].copy(), slack[self._switches].copy()
        self._left = np.array([[unit.members[k]] for k in self._switches], np.int64)
        self._kept = np.zeros_like(self._free)
        rows = {k: i for i, k in enumerate(self._switches)}
        at = None if among is None else {a: i for i, a in enumerate(self._columns)}
        for slot, n in unit.start.items():
            k, a = divmod(slot, self._width)
            i = a if at is None else at.get(a)
            if i is not None:
                self._kept[rows[k], i] = n
        self._caps: Ints | None = None
        if unit.most is not None:
            caps = [unit.exceptions.get(a, unit.most) for a in self._columns]
            self._caps = np.array(caps, np.int64)
        self.lit: dict[int, int] = {}

    @property
    def missing(self) -> int:
        """Members without a place."""
        return int(self._left.sum())

    @property
    def dark(self) -> dict[int, int]:
        """Members without a place, per switch."""
        left = self._left[:, 0].tolist()
        return {k: n for k, n in zip(self._switches, left, strict=True) if n}

    def fill(self) -> bool:
        """Put as many members as possible under one more aggregator; False if none fits."""
        cover = self._within(np.minimum(np.maximum(self._free, 0), self._left))
        best = self._best(cover)
        taken = cover[:, best].copy()
        for k, n in zip(self._switches, taken.tolist(), strict=True):
            if n:
                self.lit[k * self._width + self._columns[best]] = n
        self._left -= taken.reshape(-1, 1)
        self._free[:, best] -= taken
        self._slack[:, best] -= taken
        if self._caps is not None:
            self._caps[best] = 0
        return bool(taken.any())

    def _within(self, cover: Ints) -> Ints:
        """Return what a unit's spread allows of a cover: members that stay come first."""
        if self._caps is None:
            return cover
        allowed, room = np.zeros_like(cover), self._caps.copy()
        for wanted in (np.minimum(self._kept, cover), cover):
            for k in range(len(cover)):
                more = np.minimum(wanted[k] - allowed[k], room)
                allowed[k] += more
                room -= more
        return allowed

    def _best(self, cover: Ints) -> int:
        """Return the aggregator to fill next."""
        total = cover.sum(axis=0)
        slack = self._slack
        extra = (np.maximum(cover - slack, 0) - np.maximum(-slack, 0)).sum(axis=0)
        stays = np.minimum(self._kept, cover).sum(axis=0)
        if self._count_moves:
            burden, further = extra - stays, np.zeros_like(stays)
        else:
            # A unit that stays as a whole is not paused.
            missing = self.missing
            burden, further = extra - missing * (stays == missing), -stays
        over = (slack - cover).sum(axis=0)
        key = ((-total * _FIELD + burden) * _FIELD + further) * _FIELD + over
        if self._held:
            # Under an aggregator with an immovable member, another member costs no span.
            open_ = [i for i, a in enumerate(self._columns) if a in self._held and total[i]]
            if open_:
                return min(open_, key=lambda i: int(key[i]))
        return int(key.argmin())
