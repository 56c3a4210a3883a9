"""Routes for live figures."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from controller.api.common import READ_S, DesksOf, SightOf
from controller.api.deadlines import within
from controller.api.encoding import whole
from controller.api.operation import operation
from controller.api.problems import responses
from controller.schema.live import SeriesView, TopView
from sitefile import names

router = APIRouter(tags=["live"], responses=responses("unavailable"))


@router.get("/top", response_model=TopView)
@operation("live:read")
async def get_top(desks: DesksOf, sight: SightOf) -> Response:
    """Show throughput and utilisation of the last second."""
    return await whole(sight.show(await within(READ_S, "top", desks.jobs.top())))


@router.get("/series", response_model=SeriesView)
@operation("live:read")
async def get_series(
    desks: DesksOf,
    sight: SightOf,
    since_s: Annotated[
        float, Query(gt=0, le=31 * 86400, description="seconds to look back")
    ] = 300.0,
    job: Annotated[
        str | None, Query(pattern=f"^{names.NAME}$", description="one job; default all")
    ] = None,
) -> Response:
    """Show samples and markers: every 1 s, beyond 15 minutes 10 s, beyond a day 5 minutes.

    At most 120,000 samples; if there are more, the interval grows: see `interval_s`.
    """
    jobs = sight.jobs(None if job is None else (job,))
    view = sight.show(await within(READ_S, "series", desks.live.series(since_s, jobs)))
    if job is not None:
        view = view.model_copy(
            update={
                "markers": [
                    m
                    for m in view.markers
                    if m.object in ("", f"job/{job}") or "transaction" in m.object
                ],
            }
        )
    return await whole(view)
