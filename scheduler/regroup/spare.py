"""Moves light so that idle spares replace dead endpoints.

A spare gets a dead endpoint's *place* if it ends under the same aggregator: the job's span stays as
it was. Where that is impossible, it goes where the job's span grows least.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.model import Endpoint, Fabric, Job, Move, Slot, SpreadBy
from scheduler.occupancy import all_homes, capacities, displace_idle, moves_between, occupied
from scheduler.program import Program, solve

ELSEWHERE = 10
"""What a home other than the dead endpoint's costs in an offer, in moves."""

CROWDED = 100
"""What a server with as many of the job's endpoints as its spread allows costs, in moves."""

_LIMIT_S = 1.0
"""Limit in seconds for one of the five criteria; small programs need milliseconds."""


class NoPlaceError(ValueError):
    """No port is free for these spares."""

    def __init__(self, spares: Sequence[str]) -> None:
        super().__init__(f"no aggregator has a port for {', '.join(spares)}")
        self.spares = tuple(spares)


@dataclass(slots=True, frozen=True)
class _Site:
    """The fabric, its ports, and what of it is lost."""

    fabric: Fabric
    lost: frozenset[str]
    endpoints: Mapping[str, Endpoint]
    homes: Mapping[str, str | None]
    ports: Mapping[Slot, int]
    """Ports whose aggregator and optical switch live."""
    free: Mapping[Slot, int]
    idle: tuple[Endpoint, ...]
    """Idle endpoints whose light can move."""
    idle_at: Mapping[Slot, int]

    def home(self, name: str) -> str | None:
        """Return an endpoint's aggregator, None when it is dark or its aggregator is lost."""
        home = self.homes[name]
        return None if home in self.lost else home

    def slot(self, name: str) -> Slot | None:
        """Return the port's place that an endpoint occupies, None if it cannot be freed."""
        home, ocs = self.homes[name], self.endpoints[name].ocs
        return None if home is None or ocs is None or ocs in self.lost else (home, ocs)


def _site(fabric: Fabric, taking: Collection[str], lost: Collection[str]) -> _Site:
    """Count the ports; ``taking`` are the dead and the spares, which make way for none."""
    gone, homes = frozenset(lost), all_homes(fabric)
    taken = occupied(fabric.site.endpoints, homes)
    ports = {s: n for s, n in capacities(fabric).items() if not gone.intersection(s)}
    idle = tuple(
        e
        for e in fabric.idle()
        if e.name not in taking and e.ocs is not None and not gone & {e.ocs, homes[e.name]}
    )
    return _Site(
        fabric=fabric,
        lost=gone,
        endpoints={e.name: e for e in fabric.site.endpoints},
        homes=homes,
        ports=ports,
        free={slot: n - taken[slot] for slot, n in ports.items()},
        idle=idle,
        idle_at=occupied(idle, homes),
    )


def offers(
    fabric: Fabric, dead: Sequence[str], spares: Sequence[str], lost: Collection[str] = ()
) -> dict[str, dict[str, int]]:
    """Return, per spare, the dead endpoints that it can replace alone, and what each costs.

    The cost is the number of endpoints whose light moves: 0 for a spare under the dead one's
    aggregator, otherwise the spare, the dead one, which goes dark, and an idle one that makes
    way. ``ELSEWHERE`` is added if the spare cannot have the place and goes to another
    aggregator, ``CROWDED`` if it breaks the job's spread over servers. ``lost`` names
    aggregators and optical switches that are lost: no light moves there. ``spares`` are taken
    to be idle and fit. Raises KeyError for an unknown endpoint.
    """
    site = _site(fabric, {*dead, *spares}, lost)
    owner = {name: job for job in fabric.jobs for name in job.endpoints}
    gone = frozenset(dead)
    found: dict[str, dict[str, int]] = {}
    for spare in spares:
        found[spare] = {}
        elsewhere = _cost_elsewhere(site, spare)
        for name in dead:
            cost = _cost_in_place(site, name, spare)
            if cost is None and elsewhere is not None:
                cost = elsewhere + (elsewhere > 0 and site.slot(name) is not None) + ELSEWHERE
            if cost is not None:
                crowded = name in owner and _crowds(site, owner[name], gone, spare)
                found[spare][name] = cost + CROWDED * crowded
    return found


def _cost_in_place(site: _Site, dead: str, spare: str) -> int | None:
    """Return the endpoints that move for a spare to get the place, None if it cannot."""
    place, ocs = site.home(dead), site.endpoints[spare].ocs
    if place is None:
        return None
    if site.home(spare) == place:
        return 0
    if ocs is None or (place, ocs) not in site.ports:
        return None
    freed = site.slot(dead)
    if freed == (place, ocs) or site.free[place, ocs] > 0:
        return 1 + (freed is not None)
    return 2 + (freed is not None) if site.idle_at.get((place, ocs), 0) else None


def _cost_elsewhere(site: _Site, spare: str) -> int | None:
    """Return the endpoints that move to light a spare anywhere, None if that is impossible."""
    if site.home(spare) is not None:
        return 0
    ocs = site.endpoints[spare].ocs
    slots = [slot for slot in site.ports if slot[1] == ocs]
    if any(site.free[slot] > 0 for slot in slots):
        return 1
    return 2 if any(site.idle_at.get(slot, 0) for slot in slots) else None


def _crowds(site: _Site, job: Job, gone: frozenset[str], spare: str) -> bool:
    """Return whether a server would have more of a job's endpoints than its spread allows."""
    server = site.endpoints[spare].server
    there = sum(site.endpoints[n].server == server and n not in gone for n in job.endpoints)
    return job.spread is not None and bool(server) and there >= job.spread.most


def moves(fabric: Fabric, swaps: Mapping[str, str], lost: Collection[str] = ()) -> tuple[Move, ...]:
    """Return the moves after which each dead endpoint of ``swaps`` has its spare, in site order.

    ``swaps`` names the spare of each dead endpoint. Ports are counted once for all swaps. In this
    order: the fewest spares under one aggregator beyond a job's spread (or beyond what it has
    there already), the most places taken, the least span of the jobs, the fewest moves. A dead
    endpoint goes dark when its spare moves, or when its port is needed; a spare without a move
    stays where it is. ``lost`` names aggregators and optical switches that are lost.

    Raises NoPlaceError for spares that no port is left for, KeyError for an unknown endpoint and
    ValueError for a spare in two swaps.
    """
    if len(set(swaps.values())) != len(swaps):
        raise ValueError("a spare is assigned to two dead endpoints")
    site = _site(fabric, {*swaps, *swaps.values()}, lost)
    after = dict(site.homes)
    found = _Swaps(site, swaps).solve()
    for name in found.darkened:
        after[name] = None
    after.update(found.homes)
    idle = {e.name for e in site.idle}
    others = [e for e in fabric.site.endpoints if e.name not in idle]
    displace_idle(site.ports, site.idle, after, occupied(others, after))
    return moves_between(fabric.site, site.homes, after)


@dataclass(slots=True, frozen=True)
class _Found:
    """The home of every spare, and the dead endpoints that go dark."""

    homes: dict[str, str]
    darkened: tuple[str, ...]


@dataclass(slots=True)
class _Columns:
    """The columns of the spares: 1 if the spare goes there."""

    place: dict[str, int] = field(default_factory=dict)
    stay: dict[str, int] = field(default_factory=dict)
    """It stays where it is, which is not its place."""
    nowhere: dict[str, int] = field(default_factory=dict)
    dark: dict[str, int] = field(default_factory=dict)
    """By dead endpoint: it goes dark."""
    go: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    """By job, optical switch and aggregator: how many spares go there from elsewhere."""
    ports: dict[Slot, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    here: dict[tuple[str, str], dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    """By job and aggregator: the spares that end there."""


class _Swaps:
    """The swaps as a small integer program, solved for one criterion after the other."""

    def __init__(self, site: _Site, swaps: Mapping[str, str]) -> None:
        self._site = site
        self._dead = {spare: dead for dead, spare in swaps.items()}
        owner = {name: job for job in site.fabric.jobs for name in job.endpoints}
        self._jobs = {job.name: job for name in swaps if (job := owner.get(name)) is not None}
        self._job = {s: owner[d].name if d in owner else "" for s, d in self._dead.items()}
        self._program, self._columns = Program(), _Columns()
        self._crowd: dict[int, float] = {}
        self._span: dict[int, float] = {}
        self._moved: dict[int, float] = {}
        for spare in self._dead:
            self._add_spare(spare)
        for (name, ocs), same in self._classes().items():
            self._add_class(name, ocs, same)
        self._add_ports()
        self._add_homes(swaps)

    def _classes(self) -> dict[tuple[str, str], list[str]]:
        """Return the spares that can go anywhere, by job and optical switch."""
        classes: dict[tuple[str, str], list[str]] = defaultdict(list)
        for spare, job in self._job.items():
            ocs = self._site.endpoints[spare].ocs
            if ocs is not None and ocs not in self._site.lost:
                classes[job, ocs].append(spare)
        return classes

    def _add_spare(self, spare: str) -> None:
        """Add the columns of a spare in its place, where it is, or nowhere."""
        site, columns, job = self._site, self._columns, self._job[spare]
        dead, home, ocs = self._dead[spare], site.home(spare), site.endpoints[spare].ocs
        place = site.home(dead)
        column = self._program.column
        one = columns.nowhere[spare] = column(1, integer=True)
        stays: dict[int, float] = {one: 1.0}
        if place is not None and (home == place or (place, ocs) in site.ports):
            one = columns.place[spare] = column(1, integer=True)
            columns.here[job, place][one] = 1.0
            if ocs is not None:
                columns.ports[place, ocs][one] = 1.0
            if home == place:
                stays[one] = 1.0
        if home is not None and home != place:
            one = columns.stay[spare] = column(1, integer=True)
            columns.here[job, home][one] = stays[one] = 1.0
            if ocs is not None:
                columns.ports[home, ocs][one] = 1.0
        self._moved |= dict.fromkeys(stays, -1.0)
        if site.slot(dead) is not None:
            dark = columns.dark[dead] = column(1, integer=True)
            self._moved[dark] = 1.0
            self._program.row(stays | {dark: 1.0}, 1.0, len(stays) + 1.0)
        if ocs is None or ocs in site.lost:
            row = {c[spare]: 1.0 for c in (columns.place, columns.stay) if spare in c}
            self._program.row(row | {columns.nowhere[spare]: 1.0}, 1.0, 1.0)

    def _add_class(self, job: str, ocs: str, spares: Sequence[str]) -> None:
        """Add how many of a job's spares on one optical switch go to every aggregator."""
        columns = self._columns
        places = columns.go[job, ocs] = {}
        for a, k in self._site.ports:
            if k == ocs:
                most = min(len(spares), self._site.ports[a, k])
                one = places[a] = self._program.column(most, integer=True)
                columns.ports[a, k][one] = columns.here[job, a][one] = 1.0
        kinds = (columns.place, columns.stay, columns.nowhere)
        row = {c[s]: 1.0 for c in kinds for s in spares if s in c}
        row |= dict.fromkeys(places.values(), 1.0)
        self._program.row(row, float(len(spares)), float(len(spares)))
        for spare in spares:
            # One column gives its place: at most one of the three.
            self._program.row({c[spare]: 1.0 for c in kinds if spare in c}, 0.0, 1.0)

    def _add_ports(self) -> None:
        """Count the ports: free ones, ports that spares and dead leave, and ports of idle ones."""
        site, columns = self._site, self._columns
        leaving = Counter(slot for s in self._dead if (slot := site.slot(s)) is not None)
        for slot, row in columns.ports.items():
            if slot not in site.ports:
                continue  # the switch or aggregator is lost: what is there stays
            terms = dict(row)
            for dead, column in columns.dark.items():
                if site.slot(dead) == slot:
                    terms[column] = -1.0
            idle = site.idle_at.get(slot, 0)
            if idle:
                over = self._program.column(idle, integer=True)
                terms[over] = -1.0
                self._moved[over] = 1.0
            self._program.row(terms, -float("inf"), float(site.free[slot] + leaving[slot]))

    def _add_homes(self, swaps: Mapping[str, str]) -> None:
        """Count the aggregators that are new to the jobs, and members beyond their spread."""
        site = self._site
        living: dict[str, Counter[str]] = {}
        before: dict[str, Counter[str]] = {}
        for name, job in self._jobs.items():
            at = [(n, home) for n in job.endpoints if (home := site.home(n)) is not None]
            living[name] = Counter(home for n, home in at if n not in swaps)
            before[name] = Counter(home for _, home in at)
        for (name, a), row in self._columns.here.items():
            most = float(len(swaps))
            if not living.get(name, Counter())[a]:
                new = self._program.column(1, integer=True)
                self._span[new] = 1.0
                self._program.row(row | {new: -most}, -float("inf"), 0.0)
            spread = self._jobs[name].spread if name in self._jobs else None
            if spread is not None and spread.by is SpreadBy.AGGREGATOR:
                over = self._program.column(most, integer=True)
                self._crowd[over] = 1.0
                limit = max(spread.most, before[name][a]) - living[name][a]
                self._program.row(row | {over: -1.0}, -float("inf"), float(limit))

    def solve(self) -> _Found:
        """Return the best homes; raises NoPlaceError when spares have none."""
        columns, values, nodes = self._columns, None, self._site.fabric.search_nodes
        nowhere = dict.fromkeys(columns.nowhere.values(), 1.0)
        places = dict.fromkeys(columns.place.values(), -1.0)
        for criterion in (nowhere, self._crowd, places, self._span, self._moved):
            if not criterion:
                continue
            solved = solve(self._program, criterion, 0.0, _LIMIT_S, guess=values, nodes=nodes)
            if solved.values is None:
                raise NoPlaceError(list(self._dead))
            values = solved.values.tolist()
            best = sum(cost * values[column] for column, cost in criterion.items())
            self._program.row(criterion, -float("inf"), float(round(best)))
        if values is None:
            return _Found({}, ())
        return self._read([round(value) for value in values])

    def _read(self, values: Sequence[int]) -> _Found:
        columns, site = self._columns, self._site
        without = [s for s, column in columns.nowhere.items() if values[column]]
        if without:
            raise NoPlaceError(without)
        homes: dict[str, str] = {}
        for spare in self._dead:
            for chosen, home in (
                (columns.place, site.home(self._dead[spare])),
                (columns.stay, site.home(spare)),
            ):
                if spare in chosen and values[chosen[spare]] and home is not None:
                    homes[spare] = home
        for key, spares in self._classes().items():
            targets = [a for a, c in columns.go[key].items() for _ in range(values[c])]
            homes.update(zip([s for s in spares if s not in homes], targets, strict=True))
        return _Found(homes, tuple(d for d, column in columns.dark.items() if values[column]))
