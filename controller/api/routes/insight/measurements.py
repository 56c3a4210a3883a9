"""Routes for measurements: start, import, read, cancel and remove them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response, status

from controller.api.common import CHANGE_S, READ_S, CallerOf, DesksOf, SightOf
from controller.api.deadlines import change, within
from controller.api.operation import KIB, MIB, operation
from controller.api.paging import Cursor, Limit, paged
from controller.api.problems import responses
from controller.schema.base import Page
from controller.schema.insight.measurements import (
    MeasurementImport,
    MeasurementRequest,
    MeasurementView,
)

router = APIRouter(tags=["measurements"], responses=responses("unavailable"))

Ident = Annotated[str, Path(pattern=r"^m[0-9]{1,18}$", description="a measurement's id")]


@router.get("/measurements", responses=responses("conflict"))
@operation("measurements:read")
async def list_measurements(
    desks: DesksOf, sight: SightOf, limit: Limit = None, cursor: Cursor = None
) -> Page[MeasurementView]:
    """List the measurements that are kept, oldest first, without their results."""
    epoch = desks.epoch
    items = await within(READ_S, "measurements", sight.show_all(desks.measurements.views()))
    return paged(items, epoch, limit, cursor, lambda item: item.id)


@router.get("/measurements/{ident}", responses=responses("not_found"))
@operation("measurements:read")
async def get_measurement(desks: DesksOf, sight: SightOf, ident: Ident) -> MeasurementView:
    """Show one measurement: how far it is, and its result once it has ended."""
    view = await within(READ_S, f"measurement/{ident}", desks.measurements.view(ident))
    return sight.require(view, "measurement", ident)


@router.post(
    "/measurements",
    status_code=status.HTTP_201_CREATED,
    responses=responses("forbidden", "not_found", "conflict"),
)
@operation("measurements:make", body=256 * KIB)
async def start_measurement(
    desks: DesksOf, caller: CallerOf, request: MeasurementRequest, response: Response
) -> MeasurementView:
    """Begin a measurement on idle endpoints; with ``dry_run`` only show its jobs."""
    work = desks.measurements.start(request, caller.principal.name)
    view = await change(CHANGE_S, f"measurement/{request.type}", work)
    if view.id:
        response.headers["Location"] = f"/api/v1/measurements/{view.id}"
    return view


@router.post(
    "/imports",
    status_code=status.HTTP_201_CREATED,
    responses=responses("forbidden"),
)
@operation("measurements:make", body=8 * MIB)
async def import_measurement(
    desks: DesksOf, caller: CallerOf, request: MeasurementImport, response: Response
) -> MeasurementView:
    """Keep the result of another tool as a measurement."""
    work = desks.measurements.import_result(request, caller.principal.name)
    view = await change(CHANGE_S, f"measurement/{request.type}", work)
    response.headers["Location"] = f"/api/v1/measurements/{view.id}"
    return view


@router.post(
    "/measurements/{ident}/cancel", responses=responses("forbidden", "not_found", "conflict")
)
@operation("measurements:make")
async def cancel_measurement(desks: DesksOf, ident: Ident) -> MeasurementView:
    """Stop a measurement: its jobs end, and its light is put back."""
    return await change(CHANGE_S, f"measurement/{ident}", desks.measurements.cancel(ident))


@router.delete("/measurements/{ident}", responses=responses("forbidden", "not_found", "conflict"))
@operation("measurements:make")
async def remove_measurement(desks: DesksOf, ident: Ident) -> MeasurementView:
    """Forget a measurement that has ended, with its result."""
    return await change(CHANGE_S, f"measurement/{ident}", desks.measurements.remove(ident))
