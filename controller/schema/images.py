"""REST documents of images: what is pulled ahead of the jobs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from controller.schema.base import Name, RequestModel, View

PullState = Literal["waiting", "pulling", "done", "failed"]
PreparationState = Literal["running", "done", "failed"]


class ImageView(View):
    """An image on a server."""

    server: str
    image_id: str
    names: list[str]
    """NAME:TAG and NAME@sha256:..."""
    size_bytes: int
    jobs: list[str]
    """Jobs whose containers use it now."""
    used_at: float | None = None
    """When a job last used it. Null for an image that the server's agent did not pull."""


class PrepareRequest(RequestModel):
    """Pull an image ahead of the jobs that need it."""

    most_parts = 10_000
    """It may name the servers."""

    image: str = Field(min_length=1, max_length=255)
    """By tag or by digest."""
    servers: list[Name] = Field(default_factory=list)
    """Only to these; to all servers of the site when empty."""


class ServerPullView(View):
    """How far one server is. Layers and bytes are those that are known so far."""

    server: str
    state: PullState
    image_digest: str = ""
    """NAME@sha256:... or the id of the image, once it is there."""
    size_bytes: int | None = None
    """Of the image, once it is there."""
    layers_done: int = 0
    layers: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    message: str = ""
    """Why it failed."""


class PreparationView(View):
    """One preparation of an image. The controller forgets it when it restarts; pulls go on."""

    id: str
    image: str
    state: PreparationState
    """``failed`` when a server has failed and none is busy any more."""
    started_at: float
    finished_at: float | None = None
    servers: list[ServerPullView]
