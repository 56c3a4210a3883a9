"""Routes for live figures."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from controller.api.common import READ_S, Service
from controller.api.guard import within
from controller.api.problems import responses
from controller.views import SeriesView, TopView

router = APIRouter(tags=["live"], responses=responses("unavailable"))


@router.get("/top")
async def get_top(service: Service) -> TopView:
    """Show throughput and utilisation of the last second."""
    return await within(READ_S, "top", service.top())


@router.get("/series")
async def get_series(
    service: Service,
    since_s: Annotated[
        float, Query(gt=0, le=31 * 86400, description="seconds to look back")
    ] = 300.0,
    job: Annotated[
        str | None, Query(pattern=r"^[a-z0-9-]{1,63}$", description="one job; all without it")
    ] = None,
) -> SeriesView:
    """Show samples and what happened: of 1 s, beyond 15 minutes 10 s, beyond a day 5 minutes."""
    view = await within(READ_S, "series", service.series(since_s))
    if job is None:
        return view
    return view.model_copy(
        update={
            "containers": [line for line in view.containers if line.job == job],
            "markers": [
                m
                for m in view.markers
                if m.object in ("", f"job/{job}") or "transaction" in m.object
            ],
        }
    )
