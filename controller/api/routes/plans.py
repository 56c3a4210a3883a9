"""Routes for regroups: compute a plan, carry it out, follow it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response, status

from controller.api.common import CHANGE_S, READ_S, DesksOf, Name, SightOf
from controller.api.deadlines import change, within
from controller.api.operation import MIB, operation
from controller.api.paging import Cursor, Limit, paged
from controller.api.problems import responses
from controller.plans.line import LINE_S
from controller.schema.base import Page, RequestModel
from controller.schema.plans import (
    AttachRequest,
    PlanRequest,
    PlanView,
    RolloutRequest,
    RolloutView,
    TransactionView,
)

router = APIRouter(tags=["plans"], responses=responses("unavailable"))


class TransactionRequest(RequestModel):
    """Carry out this plan unless something that it depends on has changed."""

    most_parts = 1_000_000

    plan: PlanView


@router.post("/plans", responses=responses("not_found"))
@operation("plans:make")
async def make_plan(desks: DesksOf, request: PlanRequest) -> PlanView:
    """Compute a regroup; changes nothing. 503 if too many plans wait for the planner."""
    limit_s = READ_S + LINE_S + request.time_limit_s
    return await within(limit_s, "plan", desks.plans.make_plan(request))


@router.post(
    "/transactions",
    status_code=status.HTTP_202_ACCEPTED,
    responses=responses("forbidden", "conflict"),
)
@operation("plans:apply", body=4 * MIB)
async def apply_plan(
    desks: DesksOf,
    request: TransactionRequest,
    response: Response,
    wait_s: Annotated[float, Query(ge=0, le=600, description="wait up to this long")] = 0.0,
) -> TransactionView:
    """Carry out a plan: 409 if something that it depends on has changed since it was made."""
    work = desks.plans.apply(request.plan, wait_s)
    view = await change(CHANGE_S + wait_s, f"plan/{request.plan.id}", work)
    response.headers["Location"] = f"/api/v1/transactions/{view.id}"
    return view


Ident = Annotated[str, Path(pattern=r"^[A-Za-z0-9-]{1,63}$", description="a transaction's id")]
WaitS = Annotated[float, Query(ge=0, le=600, description="wait up to this long")]


@router.post("/transactions/{ident}/abort", responses=responses("not_found", "conflict"))
@operation("plans:apply")
async def abort_transaction(desks: DesksOf, ident: Ident) -> TransactionView:
    """Roll a transaction back: 409 if its new paths are proven or it has ended."""
    return desks.plans.abort(ident)


@router.post(
    "/rollouts",
    status_code=status.HTTP_202_ACCEPTED,
    responses=responses("forbidden", "conflict"),
)
@operation("plans:apply", body=4 * MIB)
async def begin_rollout(desks: DesksOf, request: RolloutRequest, response: Response) -> RolloutView:
    """Carry out a plan in batches with a limited number of endpoints dark at once.

    Each batch is one transaction and begins when the one before has committed. 409 if something
    that the plan depends on has changed, no order keeps the limits, or another rollout is under
    way.
    """
    work = desks.rollouts.begin(request)
    view = await change(CHANGE_S + LINE_S, f"plan/{request.plan.id}", work)
    response.headers["Location"] = f"/api/v1/rollouts/{view.id}"
    return view


@router.get("/rollouts", responses=responses("conflict"))
@operation("plans:make")
async def list_rollouts(
    desks: DesksOf, limit: Limit = None, cursor: Cursor = None
) -> Page[RolloutView]:
    """List the rollouts that are kept, oldest first."""
    items = desks.rollouts.rollouts()
    return paged(items, desks.epoch, limit, cursor, lambda item: item.id)


@router.get("/rollouts/{ident}", responses=responses("not_found"))
@operation("plans:make")
async def get_rollout(desks: DesksOf, ident: Ident) -> RolloutView:
    """Show how far a rollout is, or how it ended."""
    return desks.rollouts.rollout(ident)


@router.post("/rollouts/{ident}/abort", responses=responses("not_found", "conflict"))
@operation("plans:apply")
async def abort_rollout(desks: DesksOf, ident: Ident) -> RolloutView:
    """Let no further batch begin; the one under way ends by itself. 409 if it has ended."""
    return await change(READ_S, f"rollout/{ident}", desks.rollouts.abort(ident))


@router.post(
    "/endpoints/{name}/attachment",
    status_code=status.HTTP_202_ACCEPTED,
    responses=responses("forbidden", "not_found", "conflict"),
)
@operation("fabric:change")
async def attach_endpoint(
    desks: DesksOf,
    name: Name,
    request: AttachRequest,
    response: Response,
    wait_s: WaitS = 0.0,
) -> TransactionView:
    """Move one endpoint's light to an aggregator, or darken it."""
    work = desks.plans.attach(name, request.aggregator, wait_s)
    view = await change(CHANGE_S + wait_s, f"endpoint/{name}", work)
    response.headers["Location"] = f"/api/v1/transactions/{view.id}"
    return view


@router.get("/transactions", responses=responses("conflict"))
@operation("transactions:read")
async def list_transactions(
    desks: DesksOf, sight: SightOf, limit: Limit = None, cursor: Cursor = None
) -> Page[TransactionView]:
    """List the transactions that are kept, oldest first."""
    epoch = desks.epoch
    items = await within(READ_S, "transactions", sight.show_all(desks.plans.transactions()))
    return paged(items, epoch, limit, cursor, lambda item: item.id)


@router.get("/transactions/{ident}", responses=responses("not_found"))
@operation("transactions:read")
async def get_transaction(desks: DesksOf, sight: SightOf, ident: Ident) -> TransactionView:
    """Show one transaction and its phases."""
    return sight.require(desks.plans.transaction(ident), "transaction", ident)
