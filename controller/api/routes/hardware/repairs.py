"""Routes for what is out of use or out of place."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from controller.api.common import CHANGE_S, READ_S, DesksOf, Name, SightOf
from controller.api.deadlines import change, within
from controller.api.operation import operation
from controller.api.problems import responses
from controller.schema.base import Page
from controller.schema.fabric import SwitchView
from controller.schema.live import HealthView
from controller.schema.plans import QuarantineView
from sitefile import names

router = APIRouter(tags=["repairs"], responses=responses("unavailable"))

Object = Annotated[
    str,
    Path(pattern=f"^{names.NAME}(/[0-9]{{1,9}})?$", description="a port (as0/3) or an endpoint"),
]


@router.get("/quarantine")
@operation("fabric:read")
async def list_quarantine(desks: DesksOf, sight: SightOf) -> Page[QuarantineView]:
    """List ports and endpoints that are out of use."""
    epoch = desks.epoch
    items = await within(READ_S, "quarantine", sight.show_all(desks.quarantine.views()))
    return Page[QuarantineView](items=items, epoch=epoch)


@router.post(
    "/quarantine/{name:path}/release", responses=responses("forbidden", "not_found", "conflict")
)
@operation("fabric:change")
async def release_quarantine(desks: DesksOf, name: Object) -> QuarantineView:
    """Put a port or an endpoint back into use."""
    return await change(CHANGE_S, f"quarantine/{name}", desks.quarantine.release(name))


@router.post("/switches/{name}/repair", responses=responses("forbidden", "not_found", "conflict"))
@operation("fabric:change")
async def repair_switch(desks: DesksOf, name: Name) -> SwitchView:
    """Accept a switch's map as it is and restore all circuits that jobs lack."""
    await change(CHANGE_S, f"switch/{name}", desks.drift.repair(name))
    return next(view for view in desks.fabric.switches() if view.name == name)


@router.post("/store/accept", responses=responses("forbidden", "conflict"))
@operation("fabric:change")
async def accept_store(desks: DesksOf) -> HealthView:
    """Give up what the store, an older copy, does not know; return the health."""
    return await change(CHANGE_S, "store", desks.health.accept_store())
