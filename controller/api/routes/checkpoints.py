"""Routes for the checkpoints of jobs, and for what became of jobs that lost a rank."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from checkpoints.values import MAX_STEP
from controller.api.common import CHANGE_S, READ_S, CommandsOf, Name, QueriesOf
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
async def list_checkpoints(queries: QueriesOf, name: Name) -> CheckpointsView:
    """List a job's checkpoints, the newest first, and the step that a restart would load."""
    return await within(READ_S, f"job/{name}", queries.checkpoints(name))


@router.get("/jobs/{name}/checkpoints/advice", responses=responses("not_found", "conflict"))
@operation("jobs:read")
async def get_checkpoint_advice(queries: QueriesOf, name: Name) -> IntervalView:
    """Say how often a job should write checkpoints."""
    return await within(READ_S, f"job/{name}", queries.checkpoint_advice(name))


@router.post(
    "/jobs/{name}/checkpoints/verify", responses=responses("forbidden", "not_found", "conflict")
)
@operation("jobs:change")
async def verify_checkpoints(
    commands: CommandsOf,
    name: Name,
    step: Annotated[
        int | None, Query(ge=0, le=MAX_STEP, description="one step; all that are kept if absent")
    ] = None,
) -> VerificationView:
    """Read all parts, copies and parities of a job's checkpoints, and compare their sums.

    The answer comes after servers have read everything, at the latest after ten minutes. What is
    damaged is not restored any more.
    """
    return await change(VERIFY_S, f"job/{name}", commands.verify_checkpoints(name, step))


@router.delete(
    "/jobs/{name}/checkpoints/{step:int}", responses=responses("forbidden", "not_found", "conflict")
)
@operation("jobs:change")
async def drop_checkpoint(
    commands: CommandsOf,
    name: Name,
    step: Step,
    *,
    force: Annotated[
        bool, Query(description="also the newest complete one, which is refused otherwise")
    ] = False,
) -> CheckpointsView:
    """Remove one step of a job's checkpoints, and return the others."""
    return await change(CHANGE_S, f"job/{name}", commands.drop_checkpoint(name, step, force=force))


@router.get("/jobs/{name}/recoveries", responses=responses("not_found"))
@operation("jobs:read")
async def list_job_recoveries(queries: QueriesOf, name: Name) -> RecoveriesView:
    """List what became of a job that lost ranks: the phases of each recovery, and its cost."""
    return await within(READ_S, f"job/{name}", queries.recoveries(name))


@router.get("/recoveries")
@operation("recoveries:read")
async def get_recoveries(
    queries: QueriesOf,
    since: Annotated[
        float, Query(ge=0, le=2**33, description="seconds since 1970; default everything kept")
    ] = 0.0,
) -> SiteRecoveriesView:
    """Show what failures cost the site; needs a token that sees every project."""
    return await within(READ_S, "recoveries", queries.site_recoveries(since))
