"""Routes about another engine, such as Slurm, that owns the jobs of some endpoints."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from base.engines import NUMBERS
from controller.api.common import DesksOf
from controller.api.deadlines import change, within
from controller.api.operation import operation
from controller.api.problems import responses
from controller.schema.engine import AllocationAnswerView, EngineChecksView, EngineView

router = APIRouter(tags=["engine"], responses=responses("unavailable", "not_found"))

ALLOCATION_S = 12.0
"""A hook of the engine waits for 10 s."""
CHECK_S = 35.0

_NUMBER = "|".join(f"^{pattern}$" for pattern in NUMBERS.values())
Number = Annotated[str, Path(pattern=_NUMBER, description="the engine's own number of the job")]


@router.get("/engine")
@operation("engine:read")
async def get_engine(desks: DesksOf) -> EngineView:
    """Show how it stands with the other engine: contact, topology, the latest answers."""
    return desks.engine.status()


@router.get("/engine/check")
@operation("engine:read")
async def check_engine(desks: DesksOf) -> EngineChecksView:
    """Examine the engine's versions, rights, plugins, hooks and nodes; each fault with its mend."""
    return await within(CHECK_S, "engine", desks.engine.check())


@router.post(
    "/engine/allocations/{number}", responses=responses("forbidden", "conflict", "invalid")
)
@operation("engine:announce")
async def announce_allocation(desks: DesksOf, number: Number) -> AllocationAnswerView:
    """Bring the endpoints together that the engine has just given to a job; its hook calls this.

    Nothing of the job runs yet, so nothing is paused. A second call joins the first.
    """
    work = desks.engine.allocated(number)
    return await change(ALLOCATION_S, f"engine/allocations/{number}", work)
