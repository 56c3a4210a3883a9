"""Routes for the site, its devices, volumes and events."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from controller.api.common import CHANGE_S, READ_S, DesksOf, Name, SightOf
from controller.api.deadlines import change, within
from controller.api.encoding import whole
from controller.api.operation import operation
from controller.api.paging import Cursor, Limit, cut, light, paged
from controller.api.problems import responses
from controller.schema.base import Page
from controller.schema.fabric import (
    AggregatorView,
    CircuitView,
    EndpointView,
    EventView,
    NodeView,
    SiteView,
    SwitchView,
)
from controller.schema.jobs import ContainerView, SecretView
from controller.schema.live import HealthView, PortPowerView, TraceView
from controller.schema.volumes import DataRemovalView, VolumeView
from controller.service.data import nothing_left
from sitefile import names

Owner = Annotated[
    str,
    Path(
        pattern=rf"^{names.SITE_OBJECT}(\.{names.SITE_OBJECT})?$",
        description="PROJECT or PROJECT.JOB",
    ),
]
_DATA_BYTES = 400
"""Of one directory of a volume, as JSON."""

router = APIRouter(tags=["fabric"], responses=responses("unavailable"))


@router.get("/health")
@operation("fabric:read")
async def get_health(desks: DesksOf, sight: SightOf) -> HealthView:
    """Show the controller and the devices it talks to."""
    return sight.show(desks.health.health())


@router.get("/site", response_model=SiteView)
@operation("fabric:read")
async def get_site(desks: DesksOf, sight: SightOf) -> Response:
    """Show what is cabled."""
    return await whole(await within(READ_S, "site", sight.site(desks.fabric.site())))


@router.get("/endpoints", responses=responses("conflict"))
@operation("fabric:read")
async def list_endpoints(
    desks: DesksOf, sight: SightOf, limit: Limit = None, cursor: Cursor = None
) -> Page[EndpointView]:
    """List endpoints with their homes."""
    names = desks.fabric.endpoint_names()
    part, epoch = cut(names, limit, cursor), desks.epoch
    found = sight.show_found(desks.fabric.endpoints(names[part.items]))
    items = await within(READ_S, "endpoints", found)
    return Page(items=items, epoch=epoch, next=part.next)


@router.get("/aggregators", responses=responses("conflict"))
@operation("fabric:read")
async def list_aggregators(
    desks: DesksOf, sight: SightOf, limit: Limit = None, cursor: Cursor = None
) -> Page[AggregatorView]:
    """List aggregators with their ports."""
    epoch = desks.epoch  # the items are at least this new
    found = sight.show_found(desks.fabric.aggregators())
    items = await within(READ_S, "aggregators", found)
    return paged(items, epoch, limit, cursor, lambda item: item.name)


@router.get("/switches", responses=responses("conflict"))
@operation("fabric:read")
async def list_switches(
    desks: DesksOf, sight: SightOf, limit: Limit = None, cursor: Cursor = None
) -> Page[SwitchView]:
    """List optical switches."""
    epoch = desks.epoch
    items = await within(READ_S, "switches", sight.show_all(desks.fabric.switches()))
    return paged(items, epoch, limit, cursor, lambda item: item.name)


@router.get("/circuits", responses=responses("conflict"))
@operation("fabric:read")
async def list_circuits(
    desks: DesksOf, sight: SightOf, limit: Limit = None, cursor: Cursor = None
) -> Page[CircuitView]:
    """List circuits as read back from the switches."""
    epoch = desks.epoch
    items = await within(READ_S, "circuits", sight.show_all(desks.fabric.circuits()))
    return paged(items, epoch, limit, cursor, lambda item: f"{item.switch}/{item.a}")


@router.get("/containers", responses=responses("conflict"))
@operation("jobs:read")
async def list_containers(
    desks: DesksOf, sight: SightOf, limit: Limit = None, cursor: Cursor = None
) -> Page[ContainerView]:
    """List containers as the agents last reported them."""
    epoch = desks.epoch  # the items are at least this new
    found = sight.show_found(desks.jobs.containers())
    items = await within(READ_S, "containers", found)
    return paged(items, epoch, limit, cursor, lambda item: item.name)


@router.get("/secrets", tags=["jobs"], responses=responses("conflict", "forbidden"))
@operation("secrets:list")
async def list_secrets(
    desks: DesksOf, limit: Limit = None, cursor: Cursor = None
) -> Page[SecretView]:
    """List the secrets that jobs may use: projects and names, never values."""
    items = await within(READ_S, "secrets", desks.jobs.secrets())
    return paged(items, desks.epoch, limit, cursor, lambda item: f"{item.project}/{item.name}")


@router.get("/nodes", responses=responses("conflict"))
@operation("fabric:read")
async def list_nodes(
    desks: DesksOf, sight: SightOf, limit: Limit = None, cursor: Cursor = None
) -> Page[NodeView]:
    """List servers and their agents."""
    epoch = desks.epoch
    items = await within(READ_S, "nodes", sight.nodes(desks.fabric.nodes(), desks.jobs.containers))
    return paged(items, epoch, limit, cursor, lambda item: item.name)


@router.get("/volumes", responses=responses("conflict"))
@operation("volumes:read")
async def list_volumes(
    desks: DesksOf, sight: SightOf, limit: Limit = None, cursor: Cursor = None
) -> Page[VolumeView]:
    """List the volumes of every server, and what jobs left in them."""
    epoch = desks.epoch  # the items are at least this new
    found = sight.show_found(desks.volumes.volumes())
    items = await within(READ_S, "volumes", found)
    part = cut([_volume(item) for item in items], limit, cursor)
    shown, following = light(part, items[part.items], _volume, _volume_bytes)
    return Page(items=shown, epoch=epoch, next=following)


def _volume(item: VolumeView) -> str:
    return f"{item.server}/{item.name}"


def _volume_bytes(item: VolumeView) -> int:
    return len(item.data) * _DATA_BYTES


@router.delete(
    "/volumes/{name}/data/{owner}", responses=responses("forbidden", "not_found", "conflict")
)
@operation("volumes:change")
async def remove_data(
    desks: DesksOf,
    sight: SightOf,
    name: Name,
    owner: Owner,
    server: Annotated[
        str | None, Query(pattern=f"^{names.NAME}$", description="only there; default all")
    ] = None,
    *,
    dry_run: Annotated[bool, Query(description="only say what would be removed")] = False,
) -> DataRemovalView:
    """Remove what a project or a job left in a volume; refused while a job uses it."""
    if not sight.sees(owner.partition(".")[0]):
        raise nothing_left(name, owner)
    removal = desks.data.remove(name, owner, server=server, dry_run=dry_run)
    return sight.show(await change(CHANGE_S, f"volume/{name}", removal))


@router.get("/power", responses=responses("conflict"))
@operation("fabric:read")
async def list_power(
    desks: DesksOf, sight: SightOf, limit: Limit = None, cursor: Cursor = None
) -> Page[PortPowerView]:
    """List the light at the ports of the optical switches, measured every 15 seconds."""
    epoch = desks.epoch
    items = await within(READ_S, "power", sight.show_all(desks.live.power()))
    return paged(items, epoch, limit, cursor, lambda item: f"{item.switch}/{item.port}")


@router.get("/endpoints/{name}/trace", responses=responses("not_found"))
@operation("fabric:read")
async def trace_endpoint(desks: DesksOf, sight: SightOf, name: Name) -> TraceView:
    """Follow an endpoint's light to its aggregator, hop by hop."""
    return sight.show(desks.live.trace(name))


@router.get("/events")
@operation("events:read")
async def list_events(
    desks: DesksOf,
    sight: SightOf,
    since: Annotated[int, Query(ge=0, lt=2**63, description="ids above this one")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> Page[EventView]:
    """List events, oldest first."""
    items = await within(READ_S, "events", sight.events(desks.fabric.events, since, limit))
    return Page[EventView](items=items, epoch=desks.epoch)
