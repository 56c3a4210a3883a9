"""``plan --state``: the planner on a file, without a controller."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

from console.cli.ask.files import reading
from console.cli.errors import CliError
from scheduler.model import Limits, Objective, Plan
from scheduler.occupancy import all_homes, moves_between
from scheduler.regroup.batches import BatchError, cut_into_batches
from scheduler.regroup.plan import plan_regroup
from sitefile import load_state

Document = dict[str, Any]
CUT = ("max_dark", "max_pauses", "park")
"""How a plan is cut into batches."""


def plan_state(path: Path, request: Document) -> Document:
    """Plan for a state file; options of the command line override the file's limits.

    With ``max_dark`` the moves are also ordered: ``order`` lists the endpoints that are dark
    together, batch by batch. The final homes of idle endpoints then follow from the order.
    """
    limits_given = dict(request)
    cut = {key: limits_given.pop(key) for key in CUT if key in limits_given}
    with reading(path):
        fabric, limits = load_state(path)
    limits = _with_options(limits, limits_given)
    known = [job.name for job in fabric.jobs]
    if limits.only_job is not None and limits.only_job not in known:
        raise CliError(
            "not_found",
            f"{path} has no job called {limits.only_job}",
            object=f"job/{limits.only_job}",
            hint=f"there are: {', '.join(known)}" if known else "the file has no jobs",
        )
    made = plan_regroup(fabric, limits, clock=time.perf_counter)
    if not cut:
        return document(made)
    try:
        order = cut_into_batches(fabric, made.moves, **cut)
    except BatchError as error:
        raise CliError(
            "invalid",
            str(error),
            object="--max-dark",
            hint=f"give --max-dark {error.needed}, more --max-pauses, or --park",
        ) from None
    after = order.homes_after
    moves = moves_between(fabric.site, all_homes(fabric), after)
    return document(dataclasses.replace(made, moves=moves, homes_after=after)) | {
        "batches": {
            "max_dark": cut["max_dark"],
            "max_pauses": cut.get("max_pauses", 1),
            "park": cut.get("park", False),
            "batches": len(order.batches),
            "least": order.least,
            "largest": max(map(len, order.batches), default=0),
            "pauses": dict(order.pauses),
            "refused": "",
        },
        "order": [[move.endpoint for move in batch] for batch in order.batches],
    }


def document(made: Plan) -> Document:
    """Return a plan as a document with the field names of the REST API."""
    return {
        "moves": [
            {"endpoint": move.endpoint, "from": move.source, "to": move.target}
            for move in made.moves
        ],
        "homes_after": dict(made.homes_after),
        "excess_span_before": made.excess_span_before,
        "excess_span_after": made.excess_span_after,
        "running_moves": made.running_moves,
        "jobs_paused": list(made.jobs_paused),
        "paused_gpus": made.paused_gpus,
        "pause_gpu_seconds": made.pause_gpu_seconds,
        "bound": dataclasses.asdict(made.bound),
        "optimal": made.optimal,
        "solver_seconds": made.solver_seconds,
    }


def _with_options(limits: Limits, request: Document) -> Limits:
    given = dict(request)
    if "job" in given:
        given["only_job"] = given.pop("job")
    if "objective" in given:
        given["objective"] = Objective(given["objective"])
    return dataclasses.replace(limits, **given)
