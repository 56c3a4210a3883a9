"""What the API asks about images on servers."""

from __future__ import annotations

from controller.base.slices import in_slices
from controller.devices.engine import ExecutionEngine
from controller.images.prepare import Preparations
from controller.schema.images import ImageView, PreparationView, PrepareRequest
from controller.views.images import image_view


class ImageDesk:
    """Shows the servers' images, and has them pulled ahead of jobs. Raises ServiceError."""

    def __init__(self, engine: ExecutionEngine, preparations: Preparations) -> None:
        self._engine = engine
        self._preparations = preparations

    async def images(self, timeout_s: float) -> list[ImageView]:
        """Return the images of the servers that answer within ``timeout_s``."""
        return await in_slices(await self._engine.images(timeout_s), image_view)

    def preparation(self, ident: str) -> PreparationView:
        """Return how far the servers are with pulling an image ahead."""
        return self._preparations.get(ident)

    def prepare(self, request: PrepareRequest) -> PreparationView:
        """Begin to pull an image to servers, ahead of the jobs that need it."""
        return self._preparations.begin(request)
