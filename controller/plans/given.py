"""A plan whose homes are given: idle endpoints are moved to homes that the caller chose. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from controller.base.errors import ServiceError
from scheduler.metrics import total_excess_span
from scheduler.model import Bound, Fabric, Move, Plan
from scheduler.occupancy import all_homes


def given_plan(fabric: Fabric, homes: Mapping[str, str]) -> Plan:
    """Return the plan that moves idle endpoints to ``homes``; endpoints that are there stay.

    ServiceError ``not_found`` for a name that the site lacks, ``invalid`` for a fixed cable,
    ``conflict`` for an endpoint of a job or one that is out of use.
    """
    before = all_homes(fabric)
    moves = tuple(Move(e, before.get(e), home) for e, home in homes.items())
    _check(fabric, moves)
    moves = tuple(move for move in moves if move.source != move.target)
    excess = total_excess_span(fabric, before)
    return Plan(
        moves=moves,
        homes_after=before | {move.endpoint: move.target for move in moves},
        excess_span_before=excess,
        excess_span_after=excess,
        running_moves=0,
        jobs_paused=(),
        paused_gpus=0,
        pause_gpu_seconds=0.0,
        bound=Bound(excess, 0, 0),
        optimal=True,
        epoch=fabric.epoch,
    )


def _check(fabric: Fabric, moves: tuple[Move, ...]) -> None:
    cabled = {endpoint.name: endpoint for endpoint in fabric.site.endpoints}
    aggregators = {aggregator.name for aggregator in fabric.site.aggregators}
    holders = {e: job.name for job in fabric.jobs for e in job.endpoints}
    for move in moves:
        name = move.endpoint
        if name not in cabled:
            raise ServiceError(
                "not_found",
                f"the site has no endpoint {name}",
                object=f"endpoint/{name}",
                hint="see `lightloom get endpoints`",
            )
        if move.target not in aggregators:
            raise ServiceError(
                "not_found",
                f"the site has no aggregator {move.target}",
                object=f"aggregator/{move.target}",
                hint="see `lightloom get aggregators`",
            )
        if move.source == move.target:
            continue
        if cabled[name].fixed is not None:
            raise ServiceError(
                "invalid", f"{name} is cabled to its aggregator", object=f"endpoint/{name}"
            )
        if name in holders or name in fabric.unavailable:
            why = f"carries job {holders[name]}" if name in holders else "is out of use"
            raise ServiceError(
                "conflict",
                f"{name} {why}",
                object=f"endpoint/{name}",
                hint="homes that are given are for idle endpoints; for jobs: lightloom plan --job",
            )
