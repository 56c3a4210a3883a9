"""Routes for images: list them, pull one ahead of the jobs, follow that."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response, status

from controller.api.common import READ_S, DesksOf
from controller.api.deadlines import within
from controller.api.operation import operation
from controller.api.paging import Cursor, Limit, paged
from controller.api.problems import responses
from controller.schema.base import Page
from controller.schema.images import ImageView, PreparationView, PrepareRequest

router = APIRouter(prefix="/images", tags=["images"], responses=responses("unavailable"))
LIST_S = 10.0
"""Longest wait for the servers' answers."""
Ident = Annotated[str, Path(pattern=r"^[A-Za-z0-9-]{1,63}$", description="a preparation's id")]


@router.get("", responses=responses("forbidden", "conflict"))
@operation("images:prepare")
async def list_images(
    desks: DesksOf, limit: Limit = None, cursor: Cursor = None
) -> Page[ImageView]:
    """List the images of the servers that answer."""
    items = await within(READ_S, "images", desks.images.images(LIST_S))
    return paged(items, desks.epoch, limit, cursor, lambda item: f"{item.server} {item.image_id}")


@router.post(
    "/preparations",
    status_code=status.HTTP_202_ACCEPTED,
    responses=responses("forbidden", "not_found", "conflict"),
)
@operation("images:prepare")
async def prepare_image(
    desks: DesksOf, request: PrepareRequest, response: Response
) -> PreparationView:
    """Begin to pull an image to servers; joins the same preparation if one is under way."""
    view = desks.images.prepare(request)
    response.headers["Location"] = f"/api/v1/images/preparations/{view.id}"
    return view


@router.get("/preparations/{ident}", responses=responses("forbidden", "not_found"))
@operation("images:prepare")
async def get_preparation(desks: DesksOf, ident: Ident) -> PreparationView:
    """Show how far the servers are."""
    return desks.images.preparation(ident)
