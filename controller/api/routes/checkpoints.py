"""Routes for the checkpoints of jobs, and for what became of jobs that lost a rank."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query

from checkpoints.values import MAX_STEP
from controller.api.common import CHANGE_S, READ_S, DesksOf, Name, SightOf
from controller.api.deadlines import change, within
from controller.api.operation import operation
from controller.api.problems import responses
from controller.schema.checkpoints import (
    CheckpointsView,
    IntervalView,
    RecoveriesView,
    SiteRecoveriesView,
    VerificationView,
)

router = APIRouter(tags=["checkpoints"], responses=responses("unavailable"))

VERIFY_S = 600.0
"""Longest time that a verification is waited for: servers read every part they hold."""
# A step has digits only, so that ``advice`` and ``verify`` are none.
Step = Annotated[int, Path(ge=0, le=MAX_STEP, description="a step")]


@router.get("/jobs/{name}/checkpoints", responses=responses("not_found", "conflict"))
@operation("jobs:read")
async def list_checkpoints(desks: DesksOf, sight: SightOf, name: Name) -> CheckpointsView:
    """List a job's checkpoints, the newest first, and the step that a restart would load."""
    work = sight.of_job(name, desks.checkpoints.checkpoints)
    return sight.show(await within(READ_S, f"job/{name}", work))


@router.get("/jobs/{name}/checkpoints/advice", responses=responses("not_found", "conflict"))
@operation("jobs:read")
async def get_checkpoint_advice(desks: DesksOf, sight: SightOf, name: Name) -> IntervalView:
    """Say how often a job should write checkpoints."""
    work = sight.of_job(name, desks.checkpoints.checkpoint_advice)
    return sight.show(await within(READ_S, f"job/{name}", work))


@router.post(
    "/jobs/{name}/checkpoints/verify", responses=responses("forbidden", "not_found", "conflict")
)
@operation("jobs:change")
async def verify_checkpoints(
    desks: DesksOf,
    sight: SightOf,
    name: Name,
    step: Annotated[
        int | None, Query(ge=0, le=MAX_STEP, description="one step; all that are kept if absent")
    ] = None,
) -> VerificationView:
    """Read all parts, copies and parities of a job's checkpoints, and compare their sums.

    The answer comes after servers have read everything, at the latest after ten minutes. What is
    damaged is not restored any more.
    """
    work = sight.of_job(name, partial(desks.checkpoints.verify_checkpoints, step=step))
    return sight.show(await change(VERIFY_S, f"job/{name}", work))


@router.delete(
    "/jobs/{name}/checkpoints/{step:int}", responses=responses("forbidden", "not_found", "conflict")
)
@operation("jobs:change")
async def drop_checkpoint(
    desks: DesksOf,
    sight: SightOf,
    name: Name,
    step: Step,
    *,
    force: Annotated[
        bool, Query(description="also the newest complete one, which is refused otherwise")
    ] = False,
) -> CheckpointsView:
    """Remove one step of a job's checkpoints, and return the others."""
    drop = partial(desks.checkpoints.drop_checkpoint, step=step, force=force)
    work = sight.of_job(name, drop)
    return sight.show(await change(CHANGE_S, f"job/{name}", work))


@router.get("/jobs/{name}/recoveries", responses=responses("not_found"))
@operation("jobs:read")
async def list_job_recoveries(desks: DesksOf, sight: SightOf, name: Name) -> RecoveriesView:
    """List what became of a job that lost ranks: the phases of each recovery, and its cost."""
    sight.require_job(name)
    return sight.show(desks.recoveries.of_job(name))


@router.get("/recoveries")
@operation("recoveries:read")
async def get_recoveries(
    desks: DesksOf,
    since: Annotated[
        float, Query(ge=0, le=2**33, description="seconds since 1970; default everything kept")
    ] = 0.0,
) -> SiteRecoveriesView:
    """Show what failures cost the site; needs a token that sees every project."""
    return await within(READ_S, "recoveries", desks.recoveries.of_site(since))
