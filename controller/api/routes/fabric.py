"""Routes that show the site, its devices and what happened."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from controller.api.common import READ_S, Name, Service
from controller.api.deadlines import within
from controller.api.encoding import whole
from controller.api.paging import Cursor, Limit, cut, paged
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
from controller.schema.jobs import ContainerView
from controller.schema.live import HealthView, PortPowerView, TraceView

router = APIRouter(tags=["fabric"], responses=responses("unavailable"))


@router.get("/health")
async def get_health(service: Service) -> HealthView:
    """Show the controller and the devices it talks to."""
    return await within(READ_S, "health", service.health())


@router.get("/site", response_model=SiteView)
async def get_site(service: Service) -> Response:
    """Show what is cabled."""
    return await whole(await within(READ_S, "site", service.site()))


@router.get("/endpoints", responses=responses("conflict"))
async def list_endpoints(
    service: Service, limit: Limit = None, cursor: Cursor = None
) -> Page[EndpointView]:
    """List endpoints with their homes."""
    names = service.endpoint_names()
    part, epoch = cut(names, limit, cursor), service.epoch
    items = await within(READ_S, "endpoints", service.endpoints(names[part.items]))
    return Page(items=items, epoch=epoch, next=part.next)


@router.get("/aggregators", responses=responses("conflict"))
async def list_aggregators(
    service: Service, limit: Limit = None, cursor: Cursor = None
) -> Page[AggregatorView]:
    """List aggregators with their ports."""
    epoch = service.epoch  # of what is seen at least
    items = await within(READ_S, "aggregators", service.aggregators())
    return paged(items, epoch, limit, cursor, lambda item: item.name)


@router.get("/switches", responses=responses("conflict"))
async def list_switches(
    service: Service, limit: Limit = None, cursor: Cursor = None
) -> Page[SwitchView]:
    """List optical switches."""
    items = await within(READ_S, "switches", service.switches())
    return paged(items, service.epoch, limit, cursor, lambda item: item.name)


@router.get("/circuits", responses=responses("conflict"))
async def list_circuits(
    service: Service, limit: Limit = None, cursor: Cursor = None
) -> Page[CircuitView]:
    """List circuits as read back from the switches."""
    items = await within(READ_S, "circuits", service.circuits())
    return paged(items, service.epoch, limit, cursor, lambda item: f"{item.switch}/{item.a}")


@router.get("/containers", responses=responses("conflict"))
async def list_containers(
    service: Service, limit: Limit = None, cursor: Cursor = None
) -> Page[ContainerView]:
    """List containers as the agents saw them last."""
    epoch = service.epoch  # of what is seen at least
    items = await within(READ_S, "containers", service.containers())
    return paged(items, epoch, limit, cursor, lambda item: item.name)


@router.get("/nodes", responses=responses("conflict"))
async def list_nodes(
    service: Service, limit: Limit = None, cursor: Cursor = None
) -> Page[NodeView]:
    """List servers and their agents."""
    items = await within(READ_S, "nodes", service.nodes())
    return paged(items, service.epoch, limit, cursor, lambda item: item.name)


@router.get("/power", responses=responses("conflict"))
async def list_power(
    service: Service, limit: Limit = None, cursor: Cursor = None
) -> Page[PortPowerView]:
    """List the light at the ports of the optical switches, measured every 15 seconds."""
    items = await within(READ_S, "power", service.power())
    return paged(items, service.epoch, limit, cursor, lambda item: f"{item.switch}/{item.port}")


@router.get("/endpoints/{name}/trace", responses=responses("not_found"))
async def trace_endpoint(service: Service, name: Name) -> TraceView:
    """Follow an endpoint's light to its aggregator, hop by hop."""
    return await within(READ_S, f"endpoint/{name}", service.trace(name))


@router.get("/events")
async def list_events(
    service: Service,
    since: Annotated[int, Query(ge=0, lt=2**63, description="ids above this one")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> Page[EventView]:
    """List events, oldest first."""
    items = await within(READ_S, "events", service.events(since, limit))
    return Page[EventView](items=items, epoch=service.epoch)
