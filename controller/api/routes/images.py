"""Routes for images: pull one ahead of the jobs, follow that."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response, status

from controller.api.common import CHANGE_S, READ_S, CommandsOf, QueriesOf
from controller.api.deadlines import change, within
from controller.api.problems import responses
from controller.schema.images import PreparationView, PrepareRequest

router = APIRouter(prefix="/images", tags=["images"], responses=responses("unavailable"))
Ident = Annotated[str, Path(pattern=r"^[A-Za-z0-9-]{1,63}$", description="a preparation's id")]


@router.post(
    "/preparations",
    status_code=status.HTTP_202_ACCEPTED,
    responses=responses("forbidden", "not_found", "conflict"),
)
async def prepare_image(
    commands: CommandsOf, request: PrepareRequest, response: Response
) -> PreparationView:
    """Begin to pull an image to servers; joins the same preparation if one is under way."""
    view = await change(CHANGE_S, f"image/{request.image}", commands.prepare_image(request))
    response.headers["Location"] = f"/api/v1/images/preparations/{view.id}"
    return view


@router.get("/preparations/{ident}", responses=responses("forbidden", "not_found"))
async def get_preparation(queries: QueriesOf, ident: Ident) -> PreparationView:
    """Show how far the servers are."""
    return await within(READ_S, f"preparation/{ident}", queries.preparation(ident))
