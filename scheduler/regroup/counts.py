"""Defines the regroup problem in counts: equal ports are interchangeable.

A *slot* is one (optical switch, aggregator), numbered ``switch * aggregators + aggregator``.
A *unit* is a job of two or more members of which some may move. Jobs of one endpoint are
equal: only their number per slot counts, and units displace them. Members that no plan may
move (pinned, unavailable, hard-wired) are folded into constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from scheduler.model import Limits, Objective

Ints = NDArray[np.int64]

Number = TypeVar("Number", np.int64, np.float64)

Counts = Mapping[int, int]
"""How many members per slot (lit) or per switch (dark); without zeros."""


@dataclass(slots=True, frozen=True)
class JobUnit:
    """A job of several members: where they are, and which of them may move."""

    job: int
    """Number of the job in the fabric."""
    size: int
    """Members, movable or not."""
    least: int
    """Lower bound on the span."""
    weight: float
    """w_j in the objective; 0 for the others if the plan is for one job."""
    all_weight: float
    """w_j in the weighted excess of all jobs, which must not grow."""
    members: Counts
    """Movable members per switch."""
    start: Counts
    """Movable lit members per slot before the plan."""
    dark: Counts
    """Movable members per switch that are dark before the plan."""
    held: frozenset[int]
    """Aggregators with a lit member that may not move."""
    held_dark: int = 0
    """Members that are dark and may not move."""
    most: int | None = None
    """Movable members that may be under one aggregator; None if ports are the only limit."""
    exceptions: Counts = field(default_factory=dict)
    """By aggregator: how many instead, where members are held or too many are already."""

    @property
    def base_span(self) -> int:
        """The part of the span that no plan changes."""
        return len(self.held) + self.held_dark

    @property
    def alone(self) -> bool:
        """True if zero excess span means that all members are under one aggregator."""
        return self.least == 1 and not self.held_dark


@dataclass(slots=True, frozen=True)
class MemberLayout:
    """Where the movable members of every unit are: lit per slot, dark per switch."""

    lit: Sequence[Counts]
    dark: Sequence[Counts]


@dataclass(slots=True, frozen=True)
class Cost:
    """The cost of a layout."""

    excess: float
    """Weighted excess span of the jobs in the objective."""
    total_excess: float
    """Weighted excess span of all jobs."""
    moves: int
    """Members of jobs that change home."""
    paused: int
    """Endpoints of all jobs with a moved member."""
    jobs: int
    """Jobs with a moved member."""
    idle: int
    """Idle endpoints that are displaced."""

    def key(self, objective: Objective) -> tuple[float, int, int, int]:
        """Return the lexicographic objective."""
        first, second = self.paused, self.moves
        if objective is Objective.MOVES:
            first, second = second, first
        # Weights are floats: sums that differ only by rounding must compare equal.
        return round(self.excess, 6), first, second, self.idle


@dataclass(slots=True, frozen=True)
class RegroupProblem:
    """A fabric and its limits as counts."""

    limits: Limits
    units: tuple[JobUnit, ...]
    switches: int
    aggregators: int
    room: Ints
    """room[slot]: ports without an immovable endpoint."""
    single: Ints
    """single[slot]: movable jobs of one endpoint."""
    idle: Ints
    """idle[slot]: movable idle endpoints."""
    spare: Ints
    """spare[switch]: how many dark members the free ports can light."""
    excess_limit: float
    """Limit of the weighted excess span of all units together."""
    endpoints: int
    """Endpoints of the site."""
    search_nodes: int | None
    """As in the fabric."""

    @property
    def start(self) -> MemberLayout:
        """The layout before the plan."""
        return MemberLayout([u.start for u in self.units], [u.dark for u in self.units])

    def used(self, layout: MemberLayout) -> Ints:
        """Return the ports that units use, per slot."""
        used = np.zeros(len(self.room), np.int64)
        for lit in layout.lit:
            for slot, n in lit.items():
                used[slot] += n
        return used

    def span(self, unit: JobUnit, lit: Counts, dark: Counts) -> int:
        """Return the span of a unit; every dark member counts as a place of its own."""
        places = {slot % self.aggregators for slot in lit} | unit.held
        return len(places) + sum(dark.values()) + unit.held_dark

    def cost(self, layout: MemberLayout) -> Cost:
        """Return the cost of a layout."""
        excess = total = 0.0
        moves = paused = jobs = 0
        for unit, lit, dark in zip(self.units, layout.lit, layout.dark, strict=True):
            over = self.span(unit, lit, dark) - unit.least
            excess += unit.weight * over
            total += unit.all_weight * over
            moved = moved_members(unit, lit, dark)
            if moved:
                moves += moved
                paused += unit.size
                jobs += 1
        used = self.used(layout)
        singles = int(np.maximum(used + self.single - self.room, 0).sum())
        return Cost(
            excess=excess,
            total_excess=total,
            moves=moves + singles,
            paused=paused + singles,
            jobs=jobs + singles,
            idle=self._crowded(used),
        )

    def _crowded(self, used: Ints) -> int:
        """Count the idle endpoints that units and displaced one-endpoint jobs displace."""
        over = np.maximum(used + self.single - self.room, 0)
        crowded = np.maximum(used + self.single - over + self.idle - self.room, 0)
        free = np.maximum(self.room - used - self.single - self.idle, 0)
        shape = self.switches, self.aggregators
        arriving = over.reshape(shape).sum(axis=1) - free.reshape(shape).sum(axis=1)
        return int(crowded.sum() + np.maximum(arriving, 0).sum())

    def allows(self, layout: MemberLayout) -> bool:
        """Return whether a layout has all members and keeps ports, budgets and excess limit."""
        lit_up = np.zeros(self.switches, np.int64)
        for unit, lit, dark in zip(self.units, layout.lit, layout.dark, strict=True):
            per_switch: dict[int, int] = dict(dark)
            for slot, n in lit.items():
                k = slot // self.aggregators
                per_switch[k] = per_switch.get(k, 0) + n
                if n <= 0:
                    return False
            if per_switch != unit.members or not self.keeps_apart(unit, lit):
                return False
            for k, n in dark.items():
                if not 0 < n <= unit.dark.get(k, 0):
                    return False
            for k, n in unit.dark.items():
                lit_up[k] += n - dark.get(k, 0)
        if (self.used(layout) > self.room).any() or (lit_up > self.spare).any():
            return False
        cost, limits = self.cost(layout), self.limits
        return (
            (limits.max_moves is None or cost.moves <= limits.max_moves)
            and (limits.max_jobs_paused is None or cost.jobs <= limits.max_jobs_paused)
            and cost.total_excess <= self.excess_limit + 1e-6
        )

    def keeps_apart(self, unit: JobUnit, lit: Counts) -> bool:
        """Return whether no aggregator has more of a unit than its spread allows."""
        if unit.most is None:
            return True
        there: dict[int, int] = {}
        for slot, n in lit.items():
            a = slot % self.aggregators
            there[a] = there.get(a, 0) + n
        return all(n <= unit.exceptions.get(a, unit.most) for a, n in there.items())

    def by_switch(self, values: NDArray[Number]) -> NDArray[Number]:
        """Return a slot array as [switch, aggregator]."""
        return values.reshape(self.switches, self.aggregators)


def moved_members(unit: JobUnit, lit: Counts, dark: Counts) -> int:
    """Return how many members of a unit change home."""
    if lit == unit.start and dark == unit.dark:
        return 0
    kept = sum(min(n, lit.get(slot, 0)) for slot, n in unit.start.items())
    return sum(unit.members.values()) - kept - sum(dark.values())


def least_moves(problem: RegroupProblem, unit: JobUnit, excess: int = 0) -> int:
    """Return how many members of a unit must move for it to end with this excess."""
    shards: dict[int, int] = {}
    for slot, n in unit.start.items():
        a = slot % problem.aggregators
        shards[a] = shards.get(a, 0) + n
    free = sum(n for a, n in shards.items() if a in unit.held)
    # A dark member that stays dark counts as a place, like a shard.
    others = [n for a, n in shards.items() if a not in unit.held]
    others += [1] * sum(unit.dark.values())
    others.sort(reverse=True)
    allowed = max(unit.least + excess - unit.base_span, 0)
    return sum(unit.members.values()) - free - sum(others[:allowed])


def disruption_per_excess(problem: RegroupProblem, unit: JobUnit, now: int) -> dict[int, int]:
    """Return, per remaining excess span, the least moves of a moved unit that is not compact.

    A result worse than ``now`` costs at least as much as the last entry.
    """
    return {e: max(least_moves(problem, unit, e), 1) for e in range(1, max(now, 1) + 1)}


def least_excess(problem: RegroupProblem) -> float:
    """Return a lower bound on the weighted excess span with unlimited moves."""
    return sum(u.weight * max(u.base_span - u.least, 0) for u in problem.units)


def disruption_at_zero_excess(problem: RegroupProblem) -> tuple[int, int]:
    """Return (running moves, paused endpoints) that any plan with zero excess span needs.

    LB1: a job that ends compact keeps at most its largest shards in place. Only jobs in the
    objective have to end compact.
    """
    moves = paused = 0
    for unit in problem.units:
        if unit.weight > 0 and problem.span(unit, unit.start, unit.dark) > unit.least:
            moves += least_moves(problem, unit)
            paused += unit.size
    return moves, paused
