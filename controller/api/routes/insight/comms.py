"""Route for the communication of a job."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query

from controller.api.common import READ_S, DesksOf, Name, SightOf
from controller.api.deadlines import within
from controller.api.operation import operation
from controller.api.problems import responses
from controller.schema.insight.comms import CommsView

router = APIRouter(prefix="/jobs", tags=["jobs"], responses=responses("unavailable"))


@router.get("/{name}/comms", responses=responses("not_found"))
@operation("jobs:read")
async def get_comms(
    desks: DesksOf,
    sight: SightOf,
    name: Name,
    *,
    rank: Annotated[int | None, Query(ge=0, lt=2**31, description="one rank; default all")] = None,
    since_s: Annotated[
        float | None,
        Query(gt=0, le=3600, description="only the last seconds; default the whole run"),
    ] = None,
) -> CommsView:
    """Show what a job communicates: operations by size, overlap with computation, recorders.

    Figures are at most about twenty seconds old; those of an ended job are its last.
    """
    work = sight.of_job(name, partial(desks.comms.view, rank=rank, since_s=since_s))
    return sight.show(await within(READ_S, f"job/{name}", work))
