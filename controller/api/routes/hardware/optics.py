"""Routes for the ports of one optical switch: health, alarms, and light over time."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from controller.api.common import CHANGE_S, DesksOf, Name, SightOf
from controller.api.deadlines import within
from controller.api.operation import operation
from controller.api.problems import responses
from controller.schema.fabric import OpticsView
from controller.schema.live import PowerSeriesView

router = APIRouter(tags=["fabric"], responses=responses("unavailable"))


@router.get("/switches/{name}/ports/{port}/power", responses=responses("not_found"))
@operation("fabric:read")
async def get_power_series(
    desks: DesksOf,
    sight: SightOf,
    name: Name,
    port: Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,32}$", description="a port: 1.1.3")],
    since_s: Annotated[
        float, Query(gt=0, le=31 * 86400, description="seconds to look back")
    ] = 3600.0,
) -> PowerSeriesView:
    """Show a port's light over time: every 15 s, beyond a day 5 minutes."""
    return sight.show(desks.live.power_series(name, port, since_s))


@router.get("/switches/{name}/ports", responses=responses("not_found"))
@operation("fabric:read")
async def get_optics(desks: DesksOf, sight: SightOf, name: Name) -> OpticsView:
    """Show the health of a switch's cabled ports, and its active alarms."""
    return sight.show(await within(CHANGE_S, f"switch/{name}", desks.optics.read(name)))
