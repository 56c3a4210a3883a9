"""Plans the regroup after which a waiting job can start with its least span."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from scheduler import metrics
from scheduler.model import Bound, Fabric, Job, Limits, Locality, Plan, Request, Wait
from scheduler.placement import apart
from scheduler.placement.index import FabricIndex
from scheduler.placement.place import place
from scheduler.placement.selection import Capacity, balanced, best_fit, nearest
from scheduler.regroup.one_job import Consolidation, consolidate
from scheduler.regroup.plan import DARK_TIME_S, plan_regroup

_CANDIDATE = ""
"""Name of the waiting job while the planner treats it as running; no real job has it."""


def candidates(index: FabricIndex, request: Request) -> list[tuple[str, ...]]:
    """Return sets of idle endpoints that the job might get, the most promising first.

    One is balanced over the optical switches, one is the best fit in place; empty if there
    are not enough idle endpoints.
    """
    pool, count = index.pool(request), request.count
    if pool.idle < count:
        return []
    if request.endpoints:
        return [request.endpoints]
    found: list[Sequence[int]] = []
    spread = apart.binding(request)
    if spread is not None:
        tried = (f(index, pool, count, spread) for f in (apart.hoped, apart.in_place))
        return list(dict.fromkeys(tuple(index.names[e] for e in s.chosen) for s in tried if s))
    if pool.lit >= count:
        found.append(best_fit(index, pool, count))
    widest = Capacity.empty(index, pool).fewest(count)
    limits = [*pool.idle_by_slot[:-1], 0]
    if widest is not None and sum(limits) >= count:
        wanted = balanced(limits, count, [0] * len(limits))
        found.insert(0, nearest(index, pool, wanted, widest))
    names = (tuple(index.names[e] for e in chosen) for chosen in found)
    return list(dict.fromkeys(n for n in names if len(n) == count))


def estimate(
    index: FabricIndex, request: Request, movable: Callable[[str], bool]
) -> Consolidation | None:
    """Return moves that make room, found by a heuristic without a proof; None without any.

    ``index`` is unchanged afterwards.
    """
    best: Consolidation | None = None
    for chosen in candidates(index, request):
        index.start(Job(_CANDIDATE, chosen, spread=request.spread))
        found = consolidate(index, _CANDIDATE, movable)
        index.finish(_CANDIDATE)
        if found is not None and (best is None or found.others_gpus < best.others_gpus):
            best = found
    return best


def make_room(
    fabric: Fabric,
    request: Request,
    limits: Limits,
    *,
    clock: Callable[[], float] | None = None,
    pause_s: float = DARK_TIME_S,
) -> Plan | None:
    """Plan the moves after which a job that waits for its locality fits; None without any.

    The planner treats the job as running on the endpoints it would get, so the plan also
    re-homes them. ``bound.running_moves`` is proven (``Wait.moves_needed``), the other bounds
    are unknown and 0. Raises scheduler.occupancy.FabricError for a fabric that contradicts itself.
    """
    index = FabricIndex(fabric)
    placed = place(index, replace(request, locality=Locality.STRICT))
    if not isinstance(placed, Wait) or placed.code != "locality":
        return None
    least = 0 if placed.moves_needed is None else placed.moves_needed
    found: list[Plan] = []
    tries = candidates(index, request)
    for chosen in tries:
        job = Job(_CANDIDATE, chosen, spread=request.spread)
        with_it = replace(fabric, jobs=(*fabric.jobs, job))
        share = replace(limits, only_job=_CANDIDATE, time_limit_s=limits.time_limit_s / len(tries))
        made = plan_regroup(with_it, _with_candidate(share), clock=clock, pause_s=pause_s)
        trial = replace(fabric, homes=made.homes_after)
        fits = place(trial, replace(request, locality=Locality.STRICT))
        if made.moves and not isinstance(fits, Wait):
            plan = _without_candidate(fabric, made, least, pause_s)
            if _within(plan, limits):
                found.append(plan)
    return min(found, key=lambda p: (p.paused_gpus, p.running_moves), default=None)


def _with_candidate(limits: Limits) -> Limits:
    """Return limits that leave the waiting job out of account."""
    jobs = None if limits.max_jobs_paused is None else limits.max_jobs_paused + 1
    return replace(limits, max_jobs_paused=jobs, max_moves=None)


def _within(plan: Plan, limits: Limits) -> bool:
    jobs, moves = limits.max_jobs_paused, limits.max_moves
    return (jobs is None or len(plan.jobs_paused) <= jobs) and (
        moves is None or plan.running_moves <= moves
    )


def _without_candidate(fabric: Fabric, made: Plan, least: int, pause_s: float) -> Plan:
    """Return the plan with its cost to running jobs only."""
    size = {job.name: len(job.endpoints) for job in fabric.jobs}
    busy = {name for job in fabric.jobs for name in job.endpoints}
    paused = tuple(name for name in made.jobs_paused if name != _CANDIDATE)
    gpus = sum(size[name] for name in paused)
    moves = sum(move.endpoint in busy for move in made.moves)
    after = made.homes_after
    before = {e.name: made.homes_after[e.name] for e in fabric.site.endpoints}
    before.update({move.endpoint: move.source for move in made.moves})
    return replace(
        made,
        excess_span_before=metrics.total_excess_span(fabric, before),
        excess_span_after=metrics.total_excess_span(fabric, after, before),
        running_moves=moves,
        jobs_paused=paused,
        paused_gpus=gpus,
        pause_gpu_seconds=gpus * pause_s,
        bound=Bound(0.0, float(min(least, moves)), 0.0),
        optimal=False,
    )
