"""Selects endpoints for a job that must be spread over servers or aggregators.

The selection is a small integer program: only jobs whose spread the usual selection breaks
come here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.metrics import least_apart
from scheduler.model import Request, Spread, SpreadBy
from scheduler.occupancy import displace_idle, occupied
from scheduler.placement.index import DARK, FabricIndex
from scheduler.placement.pool import EndpointPool, Ints
from scheduler.program import Program, solve

_ANY = -1
"""Stands for all servers of which the job may use every endpoint."""

_LIMIT_S = 1.0
"""Limit in seconds for one criterion; a rack needs milliseconds."""


@dataclass(slots=True, frozen=True)
class Selection:
    """Selected endpoints, and the new homes of idle endpoints."""

    chosen: list[int]
    after: dict[int, int]
    span: int


def binding(request: Request) -> Spread | None:
    """Return the spread of a request, None if it cannot matter."""
    spread = request.spread
    return spread if spread is not None and spread.most < request.count else None


def keeps(index: FabricIndex, spread: Spread, chosen: Sequence[int]) -> bool:
    """Return whether endpoints are spread as they must be, with their present homes."""
    servers = Counter(index.server[e] for e in chosen)
    if max(servers.values(), default=0) > spread.most:
        return False
    return spread.by is SpreadBy.SERVER or _within(index, spread, chosen)


def _within(index: FabricIndex, spread: Spread, chosen: Sequence[int]) -> bool:
    homes = Counter(index.home[e] for e in chosen if index.home[e] != DARK)
    return max(homes.values(), default=0) <= spread.most


def most_by_server(index: FabricIndex, pool: EndpointPool, spread: Spread, *, idle: bool) -> int:
    """Return how many endpoints of the pool the servers can give: idle ones, or all there are."""
    have: Counter[int] = Counter()
    for e in pool.of(range(index.size)):
        have[index.server[e]] += not idle or index.is_idle(e)
    return sum(min(n, spread.most) for n in have.values())


def in_place(
    index: FabricIndex, pool: EndpointPool, count: int, spread: Spread
) -> Selection | None:
    """Select lit idle endpoints under the fewest aggregators, None if that is impossible."""
    return _Choice(index, pool, count, spread).selection()


def rehomed(index: FabricIndex, pool: EndpointPool, count: int, spread: Spread) -> Selection | None:
    """Select idle endpoints for the fewest aggregators that moves of idle ones reach."""
    return _Choice(index, pool, count, spread, room=index.ports - index.held).selection()


def hoped(index: FabricIndex, pool: EndpointPool, count: int, spread: Spread) -> Selection | None:
    """Select idle endpoints as ``rehomed`` does, but as if running jobs left every port."""
    return _Choice(index, pool, count, spread, room=index.ports).selection()


def least(index: FabricIndex, pool: EndpointPool, count: int, spread: Spread) -> int | None:
    """Return the least span on the site without jobs, None if the job never fits."""
    choice = _Choice(index, pool, count, spread, room=index.ports, busy=True)
    found = choice.fewest()
    # Out of time: the spread alone bounds it.
    return found if found is not None or choice.impossible else least_apart(count, spread.most)


def moves_needed(
    index: FabricIndex, pool: EndpointPool, count: int, spread: Spread, aggregators: int
) -> int | None:
    """Return how many ports of running jobs the job needs for this span, None if impossible."""
    choice = _Choice(
        index,
        pool,
        count,
        spread,
        room=index.ports - index.held,
        evictable=index.held - index.stuck,
    )
    return choice.evicted(aggregators)


@dataclass(slots=True)
class _Columns:
    """Columns of the program."""

    stay: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """By server, slot and aggregator: endpoints that are taken where they are."""
    leave: dict[tuple[int, int], int] = field(default_factory=dict)
    """By server and slot: endpoints that are taken and re-homed."""
    arrive: dict[tuple[int, int], int] = field(default_factory=dict)
    """By slot and aggregator: re-homed ones that come."""
    evict: dict[tuple[int, int], int] = field(default_factory=dict)
    used: dict[int, int] = field(default_factory=dict)
    """By aggregator: whether the job has endpoints there."""


class _Choice:
    """The choice of one job's endpoints."""

    def __init__(
        self,
        index: FabricIndex,
        pool: EndpointPool,
        count: int,
        spread: Spread,
        *,
        room: Ints | None = None,
        busy: bool = False,
        evictable: Ints | None = None,
    ) -> None:
        """``room`` has the ports that re-homed endpoints can take, None: none is re-homed.

        ``busy`` takes endpoints of running jobs as well.
        """
        self._index, self._count, self._spread = index, count, spread
        self._program, self._columns = Program(), _Columns()
        self.impossible = False
        """It is proven that no choice exists."""
        self._groups: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        ends = [
            e
            for e in pool.of(range(index.size))
            if index.is_idle(e) or (busy and e not in index.unavailable)
        ]
        have = Counter(index.server[e] for e in ends)
        for e in ends:
            # Servers that can give all they have count as one.
            server = index.server[e] if have[index.server[e]] > spread.most else _ANY
            self._groups[server, index.slot[e], index.home[e]].append(e)
        self._add_servers(room is not None)
        self._add_ports(room, evictable)
        self._add_aggregators()
        taken = dict.fromkeys((*self._columns.stay.values(), *self._columns.leave.values()), 1.0)
        self._program.row(taken, float(count), float(count))

    def _add_servers(self, moving: bool) -> None:
        columns, program, fixed = self._columns, self._program, self._index.fixed_slot
        by_server: dict[int, dict[int, float]] = defaultdict(dict)
        by_slot: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        size: Counter[tuple[int, int]] = Counter()
        for (server, s, a), ends in self._groups.items():
            size[server, s] += len(ends)
            if a != DARK:
                one = program.column(len(ends), integer=True)
                columns.stay[server, s, a] = one
                by_server[server][one] = by_slot[server, s][one] = 1.0
        if moving:
            for (server, s), n in size.items():
                if s != fixed:
                    one = columns.leave[server, s] = program.column(n, integer=True)
                    by_server[server][one] = 1.0
                    program.row(by_slot[server, s] | {one: 1.0}, 0.0, float(n))
        by_server.pop(_ANY, None)
        for row in by_server.values():
            program.row(row, 0.0, float(self._spread.most))

    def _add_ports(self, room: Ints | None, evictable: Ints | None) -> None:
        if room is None:
            return
        columns, program = self._columns, self._program
        leaving: dict[int, dict[int, float]] = defaultdict(dict)
        for (_, s), one in columns.leave.items():
            leaving[s][one] = -1.0
        staying: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        for (_, s, a), one in columns.stay.items():
            staying[s, a][one] = 1.0
        for s, row in leaving.items():
            for a, ports in enumerate(room[:, s].tolist()):
                more = 0 if evictable is None else int(evictable[a, s])
                if ports + more <= 0:
                    continue
                one = columns.arrive[s, a] = program.column(ports + more, integer=True)
                row[one] = 1.0
                terms = staying[s, a] | {one: 1.0}
                if more:
                    out = columns.evict[s, a] = program.column(more, integer=True)
                    terms[out] = -1.0
                program.row(terms, -float("inf"), float(ports))
            program.row(row, 0.0, 0.0)

    def _add_aggregators(self) -> None:
        columns, program = self._columns, self._program
        there: dict[int, dict[int, float]] = defaultdict(dict)
        for (_, _, a), one in columns.stay.items():
            there[a][one] = 1.0
        for (_, a), one in columns.arrive.items():
            there[a][one] = 1.0
        apart = self._spread.by is SpreadBy.AGGREGATOR
        most = float(min(self._count, self._spread.most if apart else self._count))
        for a, row in sorted(there.items()):
            used = columns.used[a] = program.column(1, integer=True)
            program.row(row | {used: -most}, -float("inf"), 0.0)

    def _minimise(self, cost: Mapping[int, float]) -> list[int] | None:
        """Minimise one criterion and keep it; None without any choice."""
        solved = solve(self._program, cost, 0.0, _LIMIT_S, nodes=self._index.search_nodes)
        if solved.values is None:
            self.impossible = solved.infeasible
            return None
        values = [round(v) for v in solved.values.tolist()]
        best = sum(weight * values[column] for column, weight in cost.items())
        self._program.row(cost, -float("inf"), float(best))
        return values

    def fewest(self) -> int | None:
        """Return the least number of aggregators, None without a choice."""
        used = self._columns.used
        values = self._minimise(dict.fromkeys(used.values(), 1.0))
        return None if values is None else sum(values[c] for c in used.values())

    def evicted(self, aggregators: int) -> int | None:
        """Return the fewest ports of running jobs that the job needs for this span."""
        columns = self._columns
        used = dict.fromkeys(columns.used.values(), 1.0)
        self._program.row(used, 0.0, float(aggregators))
        values = self._minimise(dict.fromkeys(columns.evict.values(), 1.0))
        return None if values is None else sum(values[c] for c in columns.evict.values())

    def selection(self) -> Selection | None:
        """Select for the fewest aggregators, then the fewest moves, then the tightest fit."""
        columns, index = self._columns, self._index
        if self.fewest() is None:
            return None
        if columns.arrive:
            self._minimise(dict.fromkeys(columns.arrive.values(), 1.0))
        free: Counter[int] = Counter()
        for (_, _, a), ends in self._groups.items():
            free[a] += len(ends)
        values = self._minimise({c: float(free[a]) for a, c in columns.used.items()})
        if values is None:
            return None
        homes: dict[int, int] = {}
        for (server, s, a), one in columns.stay.items():
            homes.update(dict.fromkeys(self._groups[server, s, a][: values[one]], a))
        movers: dict[int, list[int]] = defaultdict(list)
        for (server, s), one in columns.leave.items():
            # Dark ones first, then as they come.
            there = [
                e for (v, k, _), ends in self._groups.items() if (v, k) == (server, s) for e in ends
            ]
            there.sort(key=lambda e: (index.home[e] != DARK, e))
            movers[s] += [e for e in there if e not in homes][: values[one]]
        for (s, a), one in columns.arrive.items():
            for _ in range(values[one]):
                homes[movers[s].pop()] = a
        span = len(set(homes.values()))
        return Selection(sorted(homes), _moved(index, homes), span)


def _moved(index: FabricIndex, homes: Mapping[int, int]) -> dict[int, int]:
    """Return the new homes of the chosen and of the idle endpoints that make way."""
    if all(index.home[e] == a for e, a in homes.items()):
        return {}
    names = [a.name for a in index.site.aggregators]
    ends = index.site.endpoints
    after = index.homes()
    after.update({index.names[e]: names[a] for e, a in homes.items()})
    idle = [ends[e] for e in range(index.size) if index.is_idle(e) and e not in homes]
    moving = {e.name for e in idle}
    others = [e for e in ends if e.name not in moving]
    displace_idle(index.capacities(), idle, after, occupied(others, after))
    at = {name: a for a, name in enumerate(names)}
    new = [DARK if (home := after[name]) is None else at[home] for name in index.names]
    return {e: a for e, a in enumerate(new) if a != index.home[e]}
