"""Plans regroups: moves of light after which running jobs span fewer aggregators."""

from __future__ import annotations

from collections.abc import Callable

from scheduler import metrics
from scheduler.model import Bound, Fabric, Limits, Plan
from scheduler.occupancy import all_homes, check, moves_between
from scheduler.regroup.counting import Counted, count, homes_after
from scheduler.regroup.program.terms import EXCESS, MOVES, PAUSED
from scheduler.regroup.search import Found, Search, Timer

DARK_TIME_S = 0.25
"""Assumed pause of a moved job: 200 ms for a conflict-free bulk change on a Calient
switch and 50 ms of control."""


def plan_regroup(
    fabric: Fabric,
    limits: Limits,
    *,
    clock: Callable[[], float] | None = None,
    pause_s: float = DARK_TIME_S,
) -> Plan:
    """Plan the regroup that lowers excess span most with the least disruption.

    Lexicographic: excess span weighted by job weight; then by ``limits.objective`` either
    the endpoints of all moved jobs, then running moves (``pauses``), or the reverse
    (``moves``); then displaced idle endpoints. The weighted excess span of all
    jobs together never grows, pinned jobs and unavailable endpoints stay, members stay on
    their endpoint. The plan is empty if nothing is to be gained.

    ``clock`` returns monotonic seconds and bounds the search together with
    ``limits.time_limit_s``; without it only the solver's own run time counts. ``pause_s``
    is the expected dark time of a moved job, from which ``pause_gpu_seconds`` follows.
    ``bound.excess_span`` is unweighted like ``excess_span_after``; the bounds of the later
    criteria hold for plans that are as good in the earlier ones.

    Raises scheduler.occupancy.FabricError if the fabric contradicts itself and ValueError if
    ``limits.only_job`` is not a job of it.
    """
    timer = Timer(limits.time_limit_s, clock)
    check(fabric)
    counted = count(fabric, limits)
    timer.reserve()
    problem = counted.problem
    found = Search(problem, timer).run()
    homes = all_homes(fabric)
    after = homes_after(counted, found.layout)
    cost = problem.cost(found.layout)
    touched = {
        name
        for job in fabric.jobs
        for name in [job.name]
        if any(homes[e] != after[e] for e in job.endpoints)
    }
    excess_after = metrics.total_excess_span(fabric, after, homes)
    return Plan(
        moves=moves_between(fabric.site, homes, after),
        homes_after=after,
        excess_span_before=metrics.total_excess_span(fabric, homes),
        excess_span_after=excess_after,
        running_moves=cost.moves,
        jobs_paused=tuple(j.name for j in fabric.jobs if j.name in touched),
        paused_gpus=cost.paused,
        pause_gpu_seconds=cost.paused * pause_s,
        bound=_bound(counted, found, excess_after),
        optimal=found.optimal,
        solver_seconds=timer.spent(),
        epoch=fabric.epoch,
    )


def _bound(counted: Counted, found: Found, excess_after: int) -> Bound:
    # Weights are scaled to at most 1, so the weighted bound also bounds the plain sum.
    excess = found.bounds[EXCESS] + counted.constant_excess
    return Bound(
        excess_span=float(excess_after) if EXCESS in found.proven else excess,
        running_moves=found.bounds[MOVES],
        paused_gpus=found.bounds[PAUSED],
    )
