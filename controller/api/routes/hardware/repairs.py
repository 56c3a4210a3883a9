"""Routes for what is out of use or out of place."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from controller.api.common import CHANGE_S, READ_S, CommandsOf, Name, QueriesOf
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
async def list_quarantine(queries: QueriesOf) -> Page[QuarantineView]:
    """List ports and endpoints that are out of use."""
    items = await within(READ_S, "quarantine", queries.quarantine())
    return Page[QuarantineView](items=items, epoch=queries.epoch)


@router.post(
    "/quarantine/{name:path}/release", responses=responses("forbidden", "not_found", "conflict")
)
@operation("fabric:change")
async def release_quarantine(commands: CommandsOf, name: Object) -> QuarantineView:
    """Put a port or an endpoint back into use."""
    return await change(CHANGE_S, f"quarantine/{name}", commands.release(name))


@router.post("/switches/{name}/repair", responses=responses("forbidden", "not_found", "conflict"))
@operation("fabric:change")
async def repair_switch(commands: CommandsOf, name: Name) -> SwitchView:
    """Accept a switch's map as it is and restore all circuits that jobs lack."""
    return await change(CHANGE_S, f"switch/{name}", commands.repair(name))


@router.post("/store/accept", responses=responses("forbidden", "conflict"))
@operation("fabric:change")
async def accept_store(commands: CommandsOf) -> HealthView:
    """Give up what the store, an older copy, does not know; return the health."""
    return await change(CHANGE_S, "store", commands.accept_store())
