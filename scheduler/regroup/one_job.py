"""Consolidates one running job under its least span with a fast heuristic.

Fast enough to run at every event: it tries one set of target aggregators after the other and
displaces other jobs by ejection chains (``scheduler.regroup.displace``). Other jobs never end
on more aggregators than before. ``scheduler.regroup.plan`` plans for the whole fabric.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.model import Move, SpreadBy
from scheduler.placement.index import DARK, FabricIndex
from scheduler.placement.pool import Ints
from scheduler.regroup.displace import Displaced, Displacement, Relocation
from scheduler.regroup.surroundings import Surroundings, Vector

_PATIENCE = 8
"""Sets of targets tried in a row after the last that improved the plan."""
_COMPARED = 2**20
"""Counts of ports compared at once, to bound the time of a search on a large site."""


@dataclass(slots=True, frozen=True)
class Consolidation:
    """The moves of the job, of displaced jobs and of idle endpoints."""

    moves: tuple[Move, ...]
    others: tuple[str, ...]
    """Displaced running jobs."""
    others_gpus: int


def consolidate(
    index: FabricIndex, name: str, movable: Callable[[str], bool]
) -> Consolidation | None:
    """Return the cheapest moves found that bring a job to its least span, None without any.

    Cheapest: fewest endpoints of other jobs paused, then fewest members moved. ``movable``
    returns which other jobs may be moved. Raises KeyError if the job does not run.
    """
    job = index.jobs[name]
    members = [index.number[n] for n in job.endpoints]
    if any(index.slot[e] == index.fixed_slot or e in index.unavailable for e in members):
        return None
    around = Surroundings.of(index, name, movable)
    least = index.least_of(members, job.spread)
    spread = job.spread
    if spread is not None and spread.by is SpreadBy.AGGREGATOR and spread.most < len(members):
        return _consolidate_apart(around, least, spread.most)
    search = Displacement(around)
    in_vain = 0
    best: tuple[tuple[int, int], tuple[int, ...], Displaced] | None = None
    for missing, stays, targets in _target_sets(around, least):
        if best is not None and (missing >= best[0][0] or in_vain >= _PATIENCE):
            break  # at least as many endpoints pause as must leave
        in_vain += 1
        found = search.make_room(targets, None if best is None else best[0][0] + 1)
        if found is None:
            continue
        moved = len(members) - stays + sum(len(part.members) for part, _ in found.relocations)
        if best is None or (found.paused, moved) < best[0]:
            best = (found.paused, moved), targets, found
            in_vain = 0
    if best is None:
        return None
    _, targets, found = best
    moves = _moves(around, targets, found.relocations)
    return Consolidation(moves, tuple(found.others), found.paused)


def _consolidate_apart(around: Surroundings, least: int, most: int) -> Consolidation | None:
    """Bring a job to its least span with at most ``most`` members under an aggregator.

    It displaces idle endpoints only.
    """
    best: tuple[int, tuple[int, ...], list[Vector]] | None = None
    for missing, stays, targets in _target_sets(around, least):
        quotas = None if missing else _quotas(around, targets, most)
        if quotas is not None and (best is None or stays > best[0]):
            best = stays, targets, quotas
    if best is None:
        return None
    _, targets, quotas = best
    return Consolidation(_moves(around, targets, (), quotas), (), 0)


def _quotas(around: Surroundings, targets: Sequence[int], most: int) -> list[Vector] | None:
    """Return how many members come to each target per switch, None if they do not fit."""
    left = [around.total[k] - sum(around.own[a][k] for a in targets) for k in around.switches]
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


def _target_sets(around: Surroundings, least: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """Return (endpoints that must leave, members that stay, targets), cheapest first.

    A set grows from one aggregator by the one that leaves the fewest endpoints to leave, and of
    these by the one that has most members already.
    """
    ports, total = around.index.ports, np.array(around.total, np.int64)
    own = np.array(around.own, np.int64)
    open_ = own + np.array(around.room, np.int64)
    whole, mine, width = ports.sum(axis=1), own.sum(axis=1), open_.sum(axis=1)
    starts = np.argsort(-width, kind="stable")
    if least > 1:
        starts = starts[: max(_COMPARED // ports.size, 1)]
    sets, held, usable = starts[:, None], ports[starts], open_[starts]
    base = int(max(total.sum(), whole.max(initial=0))) + 1
    ties = (base - mine) * base + (base - width)
    for _ in range(least - 1):
        lacks = _short(total, held[:, None] + ports)
        leave = _short(total, usable[:, None] + open_)
        cost = (lacks * base + leave) * base * base + ties
        np.put_along_axis(cost, sets, np.iinfo(np.int64).max, axis=1)
        chosen = cost.argmin(axis=1)
        sets = np.column_stack((sets, chosen))
        held, usable = held + ports[chosen], usable + open_[chosen]
    missing, stays = _short(total, usable), mine[sets].sum(axis=1)
    order = np.lexsort((-stays, missing))
    order = order[_short(total, held)[order] == 0]
    found = {
        tuple(targets): (leave, stay)
        for leave, stay, targets in zip(
            missing[order].tolist(),
            stays[order].tolist(),
            np.sort(sets[order], axis=1).tolist(),
            strict=True,
        )
    }
    return [(leave, stay, targets) for targets, (leave, stay) in found.items()]


def _short(total: Ints, there: Ints) -> Ints:
    """Return how many ports are short of the job's on all switches together."""
    short: Ints = np.maximum(total - there, 0).sum(axis=-1)
    return short


def _moves(
    around: Surroundings,
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
