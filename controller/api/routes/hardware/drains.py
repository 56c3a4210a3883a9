"""Routes for taking servers, aggregators and optical switches out of use on purpose."""

from __future__ import annotations

from fastapi import APIRouter

from controller.api.common import CHANGE_S, READ_S, DesksOf, Name, SightOf
from controller.api.deadlines import change, within
from controller.api.operation import operation
from controller.api.paging import Cursor, Limit, paged
from controller.api.problems import responses
from controller.schema.base import Page
from controller.schema.checkpoints import DrainRequest, DrainView

router = APIRouter(tags=["drains"], responses=responses("unavailable"))
_CHANGED = responses("forbidden", "not_found", "conflict")


@router.get("/drains", responses=responses("conflict"))
@operation("fabric:read")
async def list_drains(
    desks: DesksOf, sight: SightOf, limit: Limit = None, cursor: Cursor = None
) -> Page[DrainView]:
    """List what is drained or being drained, and the jobs that still use it."""
    epoch = desks.epoch
    items = await within(READ_S, "drains", sight.show_all(desks.drains.views()))
    return paged(items, epoch, limit, cursor, lambda item: item.object)


@router.post("/nodes/{name}/drain", responses=_CHANGED)
@operation("fabric:change")
async def drain_node(desks: DesksOf, name: Name, request: DrainRequest) -> DrainView:
    """Take a server out of use: its jobs write a checkpoint, then their ranks leave it."""
    return await change(CHANGE_S, f"node/{name}", desks.drains.drain("node", name, now=request.now))


@router.delete("/nodes/{name}/drain", responses=_CHANGED)
@operation("fabric:change")
async def undrain_node(desks: DesksOf, name: Name) -> DrainView:
    """Put a server back into use; the answer shows the drain that ended."""
    return await change(CHANGE_S, f"node/{name}", desks.drains.undrain("node", name))


@router.post("/aggregators/{name}/drain", responses=_CHANGED)
@operation("fabric:change")
async def drain_aggregator(desks: DesksOf, name: Name, request: DrainRequest) -> DrainView:
    """Take an aggregator out of use: the light of jobs' endpoints leaves it."""
    work = desks.drains.drain("aggregator", name, now=request.now)
    return await change(CHANGE_S, f"aggregator/{name}", work)


@router.delete("/aggregators/{name}/drain", responses=_CHANGED)
@operation("fabric:change")
async def undrain_aggregator(desks: DesksOf, name: Name) -> DrainView:
    """Put an aggregator back into use; the answer shows the drain that ended."""
    return await change(CHANGE_S, f"aggregator/{name}", desks.drains.undrain("aggregator", name))


@router.post("/switches/{name}/drain", responses=_CHANGED)
@operation("fabric:change")
async def drain_switch(desks: DesksOf, name: Name, request: DrainRequest) -> DrainView:
    """Take an optical switch out of use: no light of a job goes through it afterwards."""
    return await change(
        CHANGE_S, f"switch/{name}", desks.drains.drain("switch", name, now=request.now)
    )


@router.delete("/switches/{name}/drain", responses=_CHANGED)
@operation("fabric:change")
async def undrain_switch(desks: DesksOf, name: Name) -> DrainView:
    """Put an optical switch back into use; the answer shows the drain that ended."""
    return await change(CHANGE_S, f"switch/{name}", desks.drains.undrain("switch", name))
