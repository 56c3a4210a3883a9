"""Consolidates one running job under its least span with a fast heuristic.

Fast enough to run at every event: it tries one set of target aggregators after the other and
selects the jobs to displace by the endpoints they pause. Other jobs never end on more
aggregators than before. ``scheduler.regroup.plan`` plans for the whole fabric.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from scheduler.model import Move, SpreadBy
from scheduler.placement.index import DARK, FabricIndex

Vector = list[int]
"""Counts per optical switch."""

_HOMES_TRIED = 4
"""Aggregators tried as the new home of a larger job by displacing one-endpoint jobs."""

_NONE: frozenset[int] = frozenset()


@dataclass(slots=True, frozen=True)
class _Victim:
    """Another job's members on certain aggregators."""

    name: str
    size: int
    vector: Vector
    members: list[int]
    elsewhere: frozenset[int]
    """Other aggregators with members of the job."""
    most: int | None = None
    """Members that its spread allows under one aggregator."""

    def may_go(self, aggregator: int) -> bool:
        """Return whether its spread allows all of its members here under another aggregator."""
        if self.most is None:
            return True
        return len(self.members) <= self.most and aggregator not in self.elsewhere

    @property
    def slot(self) -> int:
        """The switch of a job of one endpoint."""
        return self.vector.index(1)


Relocation = tuple[_Victim, int]
"""Displaced members, and the aggregator they go to."""


@dataclass(slots=True, frozen=True)
class Consolidation:
    """The moves of the job, of displaced jobs and of idle endpoints."""

    moves: tuple[Move, ...]
    others: tuple[str, ...]
    """Displaced running jobs."""
    others_gpus: int


@dataclass(slots=True)
class _Surroundings:
    """Counts of the fabric around one job."""

    index: FabricIndex
    name: str
    movable: Callable[[str], bool]
    members: list[int]
    own: list[Vector]
    room: list[Vector]
    """Ports without a busy or unavailable endpoint: idle ones are displaced for free."""
    busy: list[dict[str, list[int]]] = field(default_factory=list)
    """Per aggregator the members of every job; filled when a job must be displaced."""
    occupants: dict[int, list[_Victim]] = field(default_factory=dict)
    """Per aggregator the movable jobs; filled on demand."""

    @property
    def switches(self) -> range:
        return range(self.index.fixed_slot)


def consolidate(
    index: FabricIndex, name: str, movable: Callable[[str], bool]
) -> Consolidation | None:
    """Return the cheapest moves found that bring a job to its least span, None without any.

    Cheapest: fewest endpoints of other jobs paused, then fewest members moved. ``movable``
    tells which other jobs may be moved. Raises KeyError if the job does not run.
    """
    job = index.jobs[name]
    members = [index.number[n] for n in job.endpoints]
    if any(index.slot[e] == index.fixed_slot or e in index.unavailable for e in members):
        return None
    switches, size = index.fixed_slot, len(index.site.aggregators)
    own = [[0] * switches for _ in range(size)]
    least = index.least_of(members, job.spread)
    for e in members:
        if index.home[e] != DARK:
            own[index.home[e]][index.slot[e]] += 1
    room = (index.ports - index.held).tolist()
    around = _Surroundings(index, name, movable, members, own, room)
    total = [0] * switches
    for e in members:
        total[index.slot[e]] += 1
    spread = job.spread
    if spread is not None and spread.by is SpreadBy.AGGREGATOR and spread.most < len(members):
        return _consolidate_apart(around, total, least, spread.most)
    best: tuple[tuple[int, int], tuple[int, ...], list[Relocation]] | None = None
    for missing, stays, targets in _target_sets(around, total, least):
        if best is not None and missing >= best[0][0]:
            break  # at least as many endpoints pause as must leave
        victims = _choose_victims(around, targets, _missing_ports(around, targets, total))
        if victims is None:
            continue
        cost = sum(v.size for v, _ in victims)
        moved = len(members) - stays + sum(len(v.members) for v, _ in victims)
        if best is None or (cost, moved) < best[0]:
            best = (cost, moved), targets, victims
    if best is None:
        return None
    (cost, _), targets, victims = best
    return Consolidation(_moves(around, targets, victims), tuple(v.name for v, _ in victims), cost)


def _consolidate_apart(
    around: _Surroundings, total: Vector, least: int, most: int
) -> Consolidation | None:
    """Bring a job to its least span with at most ``most`` members under an aggregator.

    It displaces idle endpoints only.
    """
    best: tuple[int, tuple[int, ...], list[Vector]] | None = None
    for missing, stays, targets in _target_sets(around, total, least):
        quotas = None if missing else _quotas(around, targets, total, most)
        if quotas is not None and (best is None or stays > best[0]):
            best = stays, targets, quotas
    if best is None:
        return None
    _, targets, quotas = best
    return Consolidation(_moves(around, targets, (), quotas), (), 0)


def _quotas(
    around: _Surroundings, targets: Sequence[int], total: Vector, most: int
) -> list[Vector] | None:
    """Return how many members come to each target per switch, None if they do not fit."""
    left = [total[k] - sum(around.own[a][k] for a in targets) for k in around.switches]
    quotas = []
    for a in targets:
        open_ = max(most - sum(around.own[a]), 0)
        quota = []
        for k in around.switches:
            n = max(min(left[k], around.room[a][k], open_), 0)
            left[k] -= n
            open_ -= n
            quota.append(n)
        quotas.append(quota)
    return None if any(left) else quotas


def _target_sets(
    around: _Surroundings, total: Vector, least: int
) -> Sequence[tuple[int, int, tuple[int, ...]]]:
    """Return (endpoints that must leave, members that stay, targets), cheapest first."""
    sums = [sum(o) + sum(r) for o, r in zip(around.own, around.room, strict=True)]
    order = sorted(range(len(sums)), key=lambda a: (-sums[a], a))
    sets: dict[tuple[int, ...], None] = {}
    for a in order:
        rest = [b for b in order[:least] if b != a][: least - 1]
        sets[tuple(sorted((a, *rest)))] = None
    ports = around.index.ports
    found = []
    for targets in sets:
        whole = ports[list(targets)].sum(axis=0).tolist()
        if any(wanted > there for wanted, there in zip(total, whole, strict=True)):
            continue
        missing = sum(_missing_ports(around, targets, total))
        stays = sum(sum(around.own[a]) for a in targets)
        found.append((missing, stays, targets))
    found.sort(key=lambda t: (t[0], -t[1]))
    return found


def _missing_ports(around: _Surroundings, targets: Sequence[int], total: Vector) -> Vector:
    return [
        max(total[k] - sum(around.own[a][k] + around.room[a][k] for a in targets), 0)
        for k in around.switches
    ]


def _choose_victims(
    around: _Surroundings, targets: Sequence[int], missing: Vector
) -> list[Relocation] | None:
    """Select the jobs that leave the targets, and their new homes; None if impossible."""
    if not any(missing):
        return []
    candidates = _candidates(around, targets)
    there = [sum(column) for column in zip(*(v.vector for v in candidates), strict=True)]
    if not there or any(n > m for n, m in zip(missing, there, strict=True)):
        return None
    room = [
        [r + o for r, o in zip(free, own, strict=True)]
        for free, own in zip(around.room, around.own, strict=True)
    ]
    left = list(missing)
    chosen: list[tuple[_Victim, list[Relocation]]] = []
    gone: set[str] = set()
    while any(n > 0 for n in left):
        best: tuple[tuple[float, int, int], _Victim] | None = None
        for victim in candidates:
            useful = sum(min(v, n) for v, n in zip(victim.vector, left, strict=True) if n > 0)
            if useful:
                key = victim.size / useful, -useful, victim.members[0]
                if best is None or key < best[0]:
                    best = key, victim
        if best is None:
            return None
        victim = best[1]
        candidates.remove(victim)
        relocations = _relocate(around, targets, victim, room, gone)
        if relocations is None:
            continue
        gone.update(displaced.name for displaced, _ in relocations)
        left = [m - n for m, n in zip(left, victim.vector, strict=True)]
        chosen.append((victim, relocations))
    for entry in sorted(chosen, key=lambda c: -c[0].size):
        vector = entry[0].vector
        if all(n <= -missing for n, missing in zip(vector, left, strict=True)):
            chosen.remove(entry)
            left = [m + n for m, n in zip(left, vector, strict=True)]
    return [displaced for _, relocations in chosen for displaced in relocations]


def _relocate(
    around: _Surroundings,
    targets: Sequence[int],
    victim: _Victim,
    room: list[Vector],
    gone: AbstractSet[str],
) -> list[Relocation] | None:
    """Find a new home for a victim, if necessary by displacing jobs of one endpoint.

    Returns all relocations, the victim's first, and subtracts their ports from ``room``.
    Without a new home it returns None and changes nothing.
    """
    new_home = _new_home(targets, victim, room)
    if new_home is not None:
        _take_ports(victim, new_home, room)
        return [(victim, new_home)]
    if victim.size == 1:
        return None
    widest = sorted((a for a in range(len(room)) if a not in targets), key=lambda a: -sum(room[a]))
    for a in filter(victim.may_go, widest[:_HOMES_TRIED]):
        short = [max(n - r, 0) for n, r in zip(victim.vector, room[a], strict=True)]
        sent: list[_Victim] = []
        for small in _occupants(around, a):
            if small.size == 1 and short[small.slot] > 0 and small.name not in gone:
                short[small.slot] -= 1
                sent.append(small)
        if any(short):
            continue
        trial = [list(free) for free in room]
        for small in sent:
            trial[a][small.slot] += 1
        _take_ports(victim, a, trial)
        relocations: list[Relocation] = [(victim, a)]
        for small in sent:
            new_home = _new_home((*targets, a), small, trial)
            if new_home is None:
                break
            _take_ports(small, new_home, trial)
            relocations.append((small, new_home))
        if len(relocations) > len(sent):
            room[:] = trial
            return relocations
    return None


def _take_ports(victim: _Victim, aggregator: int, room: list[Vector]) -> None:
    free = room[aggregator]
    for k, n in enumerate(victim.vector):
        free[k] -= n


def _candidates(around: _Surroundings, targets: Sequence[int]) -> list[_Victim]:
    """Return the movable jobs with members on the targets."""
    if len(targets) == 1:
        return list(_occupants(around, targets[0]))
    inside: dict[str, list[_Victim]] = {}
    for a in targets:
        for part in _occupants(around, a):
            inside.setdefault(part.name, []).append(part)
    return [parts[0] if len(parts) == 1 else _merged(parts, targets) for parts in inside.values()]


def _merged(parts: Sequence[_Victim], targets: Sequence[int]) -> _Victim:
    first = parts[0]
    return _Victim(
        first.name,
        first.size,
        [sum(column) for column in zip(*(p.vector for p in parts), strict=True)],
        [e for part in parts for e in part.members],
        first.elsewhere - set(targets),
        first.most,
    )


def _occupants(around: _Surroundings, aggregator: int) -> list[_Victim]:
    """Return the movable jobs under one aggregator with their members there."""
    known = around.occupants.get(aggregator)
    if known is not None:
        return known
    index = around.index
    home, slot, fixed = index.home, index.slot, index.fixed_slot
    if not around.busy:
        around.busy = [{} for _ in around.room]
        for e, owner in enumerate(index.owner):
            if owner is not None and home[e] != DARK and e not in index.reserved:
                around.busy[home[e]].setdefault(owner, []).append(e)
    found = around.occupants[aggregator] = []
    for name, inside in around.busy[aggregator].items():
        job = index.jobs[name]
        if name == around.name or job.pinned or not around.movable(name):
            continue
        if any(slot[e] == fixed or e in index.unavailable for e in inside):
            continue
        vector = [0] * fixed
        for e in inside:
            vector[slot[e]] += 1
        elsewhere = _NONE
        if len(job.endpoints) > len(inside):
            homes = {home[index.number[n]] for n in job.endpoints}
            elsewhere = frozenset(homes - {aggregator, DARK})
        apart = job.spread is not None and job.spread.by is SpreadBy.AGGREGATOR
        most = job.spread.most if job.spread is not None and apart else None
        found.append(_Victim(name, len(job.endpoints), vector, inside, elsewhere, most))
    return found


def _new_home(closed: Sequence[int], victim: _Victim, room: list[Vector]) -> int | None:
    """Return the tightest aggregator that holds all of a victim's members, its own first."""
    wanted = [(k, n) for k, n in enumerate(victim.vector) if n]
    best, best_key = None, (True, 1 << 62)
    for a, free in enumerate(room):
        for k, n in wanted:
            if free[k] < n:
                break
        else:
            key = a not in victim.elsewhere, sum(free)
            if key < best_key and a not in closed and victim.may_go(a):
                best, best_key = a, key
    return best


def _moves(
    around: _Surroundings,
    targets: Sequence[int],
    relocations: Sequence[Relocation],
    quotas: Sequence[Vector] | None = None,
) -> tuple[Move, ...]:
    """Return all moves; ``quotas`` are the members that come to each target per switch."""
    index = around.index
    busy = index.held.tolist()
    after: dict[int, int] = {}

    def put(e: int, a: int) -> None:
        k = index.slot[e]
        if index.home[e] != DARK:
            busy[index.home[e]][k] -= 1
        busy[a][k] += 1
        after[e] = a

    for displaced, new_home in relocations:
        for e in displaced.members:
            put(e, new_home)
    ports = index.ports.tolist()
    for e in around.members:
        if index.home[e] not in targets:
            k = index.slot[e]
            if quotas is None:
                put(e, next(a for a in targets if busy[a][k] < ports[a][k]))
            else:
                a, quota = next((a, q) for a, q in zip(targets, quotas, strict=True) if q[k] > 0)
                quota[k] -= 1
                put(e, a)
    _displace_idle(index, busy, ports, after)
    names = (*(a.name for a in index.site.aggregators), None)  # the last is number DARK
    return tuple(Move(index.names[e], names[index.home[e]], names[a]) for e, a in after.items())


def _displace_idle(
    index: FabricIndex, busy: list[Vector], ports: list[Vector], after: dict[int, int]
) -> None:
    """Re-home idle endpoints whose ports are needed; without a free port they go dark."""
    touched = {(index.home[e], index.slot[e]) for e in after} | {
        (a, index.slot[e]) for e, a in after.items()
    }
    free: dict[int, list[int]] = {}
    for a, k in sorted(touched):
        if a == DARK:
            continue
        idle = index.idle_at[a][k]
        for e in idle[max(ports[a][k] - busy[a][k], 0) :]:
            if k not in free:
                free[k] = [
                    b
                    for b in range(len(busy))
                    for _ in range(ports[b][k] - busy[b][k] - len(index.idle_at[b][k]))
                ]
            after[e] = free[k].pop() if free[k] else DARK
