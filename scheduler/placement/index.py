"""Indexes a changing fabric: idle endpoints by place, updated by every start, end and move.

Endpoints, aggregators and *slots* are numbers; an endpoint's slot is the number of its
optical switch, or the last one if it is hard-wired.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from scheduler.metrics import SpanBound
from scheduler.model import Fabric, Job, Move, Request, Slot, Spread
from scheduler.occupancy import capacities, home_of
from scheduler.placement.buckets import Buckets
from scheduler.placement.pool import EndpointPool, Ints, bit_set

DARK = -1
"""Home of a dark endpoint."""


class FabricIndex:
    """A fabric with the look-ups that placement needs, updated in place.

    Unknown names raise KeyError; a start on an endpoint that is not idle raises ValueError.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.site = site = fabric.site
        self._before = fabric
        self.search_nodes = fabric.search_nodes
        self.names = tuple(e.name for e in site.endpoints)
        self.number = {name: i for i, name in enumerate(self.names)}
        self.size = len(self.names)
        self.switches = tuple(sorted({e.ocs for e in site.endpoints if e.ocs is not None}))
        self.fixed_slot = len(self.switches)
        self.unavailable: set[int] = set()
        self.reserved: set[int] = set()
        """Spares of running jobs: their owner holds them, and no plan moves them."""
        self.jobs: dict[str, Job] = {}
        self.free = 0
        """Idle endpoints that are available, of any kind."""
        self.total_excess = 0
        """Sum of the running jobs' excess spans."""
        self.bound = SpanBound(fabric)
        at_k = {ocs: k for k, ocs in enumerate(self.switches)}
        self.at = {a.name: i for i, a in enumerate(site.aggregators)}
        """Numbers of the aggregators by name."""
        self.slot = [self.fixed_slot if e.ocs is None else at_k[e.ocs] for e in site.endpoints]
        homes = (home_of(fabric.homes, e) for e in site.endpoints)
        self.home = [DARK if home is None else self.at[home] for home in homes]
        kinds: dict[tuple[str, str, int, frozenset[str]], int] = {}
        self.kind = [
            kinds.setdefault((e.kind, e.model, e.memory_bytes, e.volumes), len(kinds))
            for e in site.endpoints
        ]
        self._kinds = tuple(kinds)
        servers: dict[str, int] = {}
        self.server = [servers.setdefault(e.server or e.name, len(servers)) for e in site.endpoints]
        self.on_server: list[list[int]] = [[] for _ in servers]
        """Endpoints of every server, in site order."""
        slots, size = self.fixed_slot + 1, len(site.aggregators)
        self.ports: Ints = np.zeros((size, self.fixed_slot), np.int64)
        for (name, ocs), ports in self.capacities().items():
            if ocs in at_k:
                self.ports[self.at[name], at_k[ocs]] = ports
        self.lit: Ints = np.zeros_like(self.ports)
        """Ports in use by any endpoint."""
        self.held: Ints = np.zeros_like(self.ports)
        """Ports in use by busy and unavailable endpoints."""
        self.stuck: Ints = np.zeros_like(self.ports)
        """Held ports whose endpoints no plan may move."""
        self.idle_at: list[list[list[int]]] = [[[] for _ in range(slots)] for _ in range(size)]
        """Idle endpoints per aggregator and slot, in site order."""
        self.idle_dark: list[list[int]] = [[] for _ in range(slots)]
        self.owner: list[str | None] = [None] * len(self.names)
        self._excess: dict[str, int] = {}
        self._pools: dict[frozenset[int], EndpointPool] = {}
        self._pools_of: list[list[EndpointPool]] = [[] for _ in kinds]
        self._wired = any(s == self.fixed_slot for s in self.slot)
        self._pool_by_request: dict[tuple[str, str | None, int, frozenset[str]], EndpointPool] = {}
        self._load(fabric)

    def _load(self, fabric: Fabric) -> None:
        for e, (a, s) in enumerate(zip(self.home, self.slot, strict=True)):
            (self.idle_dark if a == DARK else self.idle_at[a])[s].append(e)
            self.on_server[self.server[e]].append(e)
            self._count_lit(e, 1)
        self.free = self.size
        reserved = {name for job in fabric.jobs for name in job.spares}
        self.withhold(sorted((fabric.unavailable - reserved) & self.number.keys()))
        for job in fabric.jobs:
            self._assign(job)

    # --- changes --------------------------------------------------------------------------

    def start(self, job: Job, moves: Sequence[Move] = ()) -> None:
        """Start a job on idle endpoints, after ``moves`` of idle ones (``Placement.moves``)."""
        if job.name in self.jobs:
            raise ValueError(f"job {job.name} is running already")
        number, owner, lost = self.number, self.owner, self.unavailable
        for name in (*job.endpoints, *job.spares):
            e = number[name]
            if owner[e] is not None or e in lost:
                raise ValueError(f"{name} is not idle, job {job.name} cannot have it")
        if moves:
            self.rehome(moves)
        self._assign(job)

    def _assign(self, job: Job) -> None:
        self.jobs[job.name] = job
        number, owner = self.number, self.owner
        members = [number[name] for name in job.endpoints]
        for e in members:
            owner[e] = job.name
        idle = [e for e in members if e not in self.unavailable] if self.unavailable else members
        self._remove_idle(idle)
        self._count_held(idle, 1, stuck=job.pinned)
        if job.spares:
            self._reserve(job)
        excess = self.excess_of(members, job.spread)
        self._excess[job.name] = excess
        self.total_excess += excess

    def _reserve(self, job: Job) -> None:
        """Give a job its spares."""
        spares = [self.number[name] for name in job.spares]
        for e in spares:
            self.owner[e] = job.name
        self.reserved.update(spares)
        self._remove_idle(spares)
        self._count_held(spares, 1, stuck=True)

    def _release(self, job: Job) -> None:
        """Make a job's spares idle again, unless they are lost."""
        spares = [self.number[name] for name in job.spares]
        for e in spares:
            self.owner[e] = None
        self.reserved.difference_update(spares)
        idle = [e for e in spares if e not in self.unavailable]
        self._count_held(idle, -1, stuck=True)
        self._add_idle(idle)

    def finish(self, name: str) -> Job:
        """End a job: its endpoints and spares are idle again. Returns the job."""
        job = self.jobs.pop(name)
        number, owner = self.number, self.owner
        members = [number[n] for n in job.endpoints]
        for e in members:
            owner[e] = None
        idle = [e for e in members if e not in self.unavailable] if self.unavailable else members
        self._count_held(idle, -1, stuck=job.pinned)
        self._add_idle(idle)
        if job.spares:
            self._release(job)
        self.total_excess -= self._excess.pop(name)
        return job

    def rehome(self, moves: Iterable[Move]) -> None:
        """Apply moves of idle or busy endpoints, all at once."""
        touched: dict[str, None] = {}
        for move in moves:
            e = self.number[move.endpoint]
            target = DARK if move.target is None else self.at[move.target]
            owner = self.owner[e]
            lost = e in self.unavailable
            kept = lost or e in self.reserved
            stuck = kept or (owner is not None and self.jobs[owner].pinned)
            idle = owner is None and not lost
            if idle:
                self._remove_idle([e])
            else:
                self._count_held([e], -1, stuck=stuck)
            self._count_lit(e, -1)
            self.home[e] = target
            self._count_lit(e, 1)
            if idle:
                self._add_idle([e])
            else:
                self._count_held([e], 1, stuck=stuck)
            if owner is not None:
                touched[owner] = None
        for name in touched:
            job = self.jobs[name]
            excess = self.excess_of([self.number[n] for n in job.endpoints], job.spread)
            self.total_excess += excess - self._excess[name]
            self._excess[name] = excess

    def withhold(self, names: Iterable[str]) -> None:
        """Make endpoints unavailable (quarantine, lost server); running jobs keep them."""
        for name in names:
            e = self.number[name]
            if e in self.unavailable:
                continue
            self._count_lost(e)
            if self.owner[e] is None:
                self._remove_idle([e])
                self._count_held([e], 1, stuck=True)
            self.unavailable.add(e)

    def _count_lost(self, e: int) -> None:
        """Count an endpoint as lost; a member of a movable job becomes stuck."""
        for pool in self._pools_of[self.kind[e]]:
            pool.lost += 1
        owner = None if e in self.reserved else self.owner[e]
        a, s = self.home[e], self.slot[e]
        if owner is not None and not self.jobs[owner].pinned and a != DARK and s != self.fixed_slot:
            self.stuck[a, s] += 1

    def _count_lit(self, e: int, delta: int) -> None:
        a, s = self.home[e], self.slot[e]
        if a != DARK and s != self.fixed_slot:
            self.lit[a, s] += delta

    def _count_held(self, members: Sequence[int], delta: int, *, stuck: bool) -> None:
        """Count the ports of busy or unavailable endpoints."""
        home, slot, held = self.home, self.slot, self.held
        for e in members:
            a, s = home[e], slot[e]
            if a != DARK and s != self.fixed_slot:
                held[a, s] += delta
                if stuck:
                    self.stuck[a, s] += delta

    def _remove_idle(self, members: Sequence[int]) -> None:
        """Remove endpoints from the idle ones."""
        home, slot, idle_at = self.home, self.slot, self.idle_at
        for e in members:
            a = home[e]
            (self.idle_dark if a == DARK else idle_at[a])[slot[e]].remove(e)
        self._count(members, -1)

    def _add_idle(self, members: Sequence[int]) -> None:
        """Add endpoints to the idle ones."""
        home, slot, idle_at = self.home, self.slot, self.idle_at
        for e in members:
            a = home[e]
            insort((self.idle_dark if a == DARK else idle_at[a])[slot[e]], e)
        self._count(members, 1)

    def _count(self, members: Sequence[int], delta: int) -> None:
        """Update the pools; neighbours of one kind under one aggregator in one step."""
        self.free += delta * len(members)
        home, slot, kind = self.home, self.slot, self.kind
        if len(members) == 1:
            self._count_one(members[0], delta)
            return
        first = 0
        while first < len(members):
            e = members[first]
            sort, a = kind[e], home[e]
            last = first + 1
            while last < len(members) and home[members[last]] == a and kind[members[last]] == sort:
                last += 1
            change = delta * (last - first)
            for pool in self._pools_of[sort]:
                by_slot = pool.idle_by_slot
                for e in members[first:last]:
                    by_slot[slot[e]] += delta
                pool.idle += change
                if a != DARK:
                    pool.lit += change
                    pool.by_free.add(a, change)
                    if self._wired or pool.servers is not None:
                        self._count_others(pool, members[first:last], delta)
            first = last

    def _count_one(self, e: int, delta: int) -> None:
        """Update the pools for one endpoint: the common case of ``_count``."""
        a, s = self.home[e], self.slot[e]
        for pool in self._pools_of[self.kind[e]]:
            pool.idle_by_slot[s] += delta
            pool.idle += delta
            if a != DARK:
                pool.lit += delta
                pool.by_free.add(a, delta)
                if self._wired or pool.servers is not None:
                    self._count_others(pool, (e,), delta)

    def _count_others(self, pool: EndpointPool, members: Sequence[int], delta: int) -> None:
        """Update the counts that few sites and requests need: hard-wired endpoints and servers."""
        for e in members:
            if self.slot[e] == self.fixed_slot:
                pool.fixed[self.home[e]] += delta
            if pool.servers is not None:
                pool.servers.add(self.server[e], delta)

    # --- look-ups -------------------------------------------------------------------------

    def pool(self, request: Request) -> EndpointPool:
        """Return the pool of the endpoints that match a request."""
        if request.endpoints or request.avoid:
            kinds, names = self._matching_kinds(request), request.endpoints or self.names
            named = {self.number[n] for n in names if n in self.number and n not in request.avoid}
            members = sorted(e for e in named if self.kind[e] in kinds)
            matches = bytearray(self.size)
            for e in members:
                matches[e] = True
            return self._new_pool(matches, members)
        key = request.kind, request.model, request.min_memory_bytes, request.volumes
        pool = self._pool_by_request.get(key)
        if pool is None:
            kinds = self._matching_kinds(request)
            pool = self._pools.get(kinds)
            if pool is None:
                whole = len(kinds) == len(self._kinds)
                alike = None if whole else [kind in kinds for kind in self.kind]
                pool = self._pools[kinds] = self._new_pool(alike, range(self.size))
                for kind in kinds:
                    self._pools_of[kind].append(pool)
            self._pool_by_request[key] = pool
        return pool

    def _matching_kinds(self, request: Request) -> frozenset[int]:
        return frozenset(
            i
            for i, (kind, model, memory, volumes) in enumerate(self._kinds)
            if kind == request.kind
            and request.model in (None, model)
            and memory >= request.min_memory_bytes
            and request.volumes <= volumes
        )

    def _new_pool(self, matches: Sequence[int] | None, among: Sequence[int]) -> EndpointPool:
        pool = EndpointPool(matches, len(self.ports), self.fixed_slot + 1)
        free = [0] * len(self.ports)
        members = pool.of(among)
        pool.members = bit_set(members, self.size)
        for e in members:
            a, s = self.home[e], self.slot[e]
            pool.total += 1
            pool.total_by_slot[s] += 1
            if s == self.fixed_slot:
                pool.total_fixed[a] += 1
            if e in self.unavailable:
                pool.lost += 1
            elif self.owner[e] is None:
                pool.idle += 1
                pool.idle_by_slot[s] += 1
                if s == self.fixed_slot:
                    pool.fixed[a] += 1
                if a != DARK:
                    free[a] += 1
                    pool.lit += 1
        pool.by_free = Buckets(free)
        return pool

    def servers(self, pool: EndpointPool) -> Buckets:
        """Return the servers by their number of lit idle endpoints of the pool."""
        if pool.servers is None:
            free = [0] * len(self.on_server)
            for slots in self.idle_at:
                for idle in slots:
                    for e in pool.of(idle):
                        free[self.server[e]] += 1
            pool.servers = Buckets(free)
        return pool.servers

    def is_idle(self, e: int) -> bool:
        """Return whether an endpoint can be given to a job."""
        return self.owner[e] is None and e not in self.unavailable

    def span_of(self, members: Sequence[int]) -> int:
        """Return the span of these endpoints; each dark one counts as a place of its own."""
        homes = [self.home[e] for e in members]
        dark = homes.count(DARK)
        return len(set(homes)) - (dark > 0) + dark

    def excess_of(self, members: Sequence[int], spread: Spread | None = None) -> int:
        """Return the excess span of these endpoints."""
        if len(members) == 1:
            return 0
        span = self.span_of(members)
        if span <= 1:
            return 0
        return span - self.least_of(members, spread)

    def least_of(self, members: Sequence[int], spread: Spread | None = None) -> int:
        """Return the least span of these endpoints with their present homes (``SpanBound``)."""
        ends = [self.site.endpoints[e] for e in members]
        if spread is None:
            return self.bound.least(ends)
        names = (*(a.name for a in self.site.aggregators), None)  # the last is number DARK
        homes = {self.names[e]: names[self.home[e]] for e in members}
        return self.bound.least(ends, spread, homes)

    def excess(self, name: str) -> int:
        """Return the excess span of a running job."""
        return self._excess[name]

    def capacities(self) -> dict[Slot, int]:
        """Return the optical ports that endpoints can have (``occupancy.capacities``)."""
        return capacities(self._before)

    def homes(self) -> dict[str, str | None]:
        """Return the home of every endpoint, in site order."""
        names = (*(a.name for a in self.site.aggregators), None)  # the last is number -1
        return {n: names[a] for n, a in zip(self.names, self.home, strict=True)}

    def snapshot(self) -> Fabric:
        """Return the fabric as an immutable value."""
        lost = frozenset(self.names[e] for e in self.unavailable | self.reserved)
        jobs = tuple(self.jobs.values())
        return replace(self._before, homes=self.homes(), jobs=jobs, unavailable=lost)
