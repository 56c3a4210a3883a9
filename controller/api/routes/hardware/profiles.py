"""Routes for what was measured of an aggregator."""

from __future__ import annotations

from fastapi import APIRouter

from controller.api.common import DesksOf, Name, SightOf
from controller.api.deadlines import change
from controller.api.operation import operation
from controller.api.problems import responses
from controller.schema.insight.profiles import ProfileView

PROBE_S = 40.0

router = APIRouter(tags=["fabric"], responses=responses("unavailable"))


@router.get("/aggregators/{name}/profile", responses=responses("not_found"))
@operation("fabric:read")
async def get_profile(desks: DesksOf, sight: SightOf, name: Name) -> ProfileView:
    """Show what the last probe of an aggregator found."""
    return sight.show(desks.profiles.view(name))


@router.post("/aggregators/{name}/probe", responses=responses("forbidden", "not_found", "conflict"))
@operation("fabric:change")
async def probe_aggregator(desks: DesksOf, name: Name) -> ProfileView:
    """Measure an aggregator: trial rules are written, read back and removed; no frame fits them."""
    return await change(PROBE_S, f"aggregator/{name}", desks.profiles.probe(name))
