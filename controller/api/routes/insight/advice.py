"""Routes for predictions and advice."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query

from controller.api.common import CHANGE_S, READ_S, DesksOf, Name, SightOf
from controller.api.deadlines import change, within
from controller.api.operation import operation
from controller.api.paging import Cursor, Limit, paged
from controller.api.problems import responses
from controller.schema.base import Page
from controller.schema.insight.advice import AdviceView, PredictionView, WhatIfRequest, WhatIfView
from sitefile import names

router = APIRouter(tags=["advice"], responses=responses("unavailable"))


@router.post("/jobs/{name}/whatif", responses=responses("forbidden", "not_found", "conflict"))
@operation("predictions:make")
async def predict_job(
    desks: DesksOf, sight: SightOf, name: Name, request: WhatIfRequest
) -> WhatIfView:
    """Predict a running job's step with other homes, and keep the prediction; nothing moves."""
    work = sight.of_job(name, partial(desks.advice.whatif, request=request))
    return sight.show(await change(CHANGE_S, f"job/{name}", work))


@router.get("/predictions", responses=responses("conflict"))
@operation("jobs:read")
async def list_predictions(
    desks: DesksOf, sight: SightOf, limit: Limit = None, cursor: Cursor = None
) -> Page[PredictionView]:
    """List the predictions that are kept, oldest first, with what was measured."""
    epoch = desks.epoch
    items = await within(
        READ_S, "predictions", sight.show_all(desks.advice.predictions(sight.projects()))
    )
    return paged(items, epoch, limit, cursor, lambda item: item.id)


@router.get("/advice", responses=responses("not_found"))
@operation("jobs:read")
async def get_advice(
    desks: DesksOf,
    sight: SightOf,
    job: Annotated[
        str | None,
        Query(pattern=f"^{names.NAME}$", description="one job; all that hold endpoints if absent"),
    ] = None,
) -> AdviceView:
    """Say what limits a job, or all jobs, and what helps, in order of gain."""
    found = await within(READ_S, "advice", desks.advice.advise(job, sight.jobs()))
    return sight.show(found)
