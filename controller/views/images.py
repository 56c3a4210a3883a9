"""Documents of images. Pure."""

from __future__ import annotations

from controller.base.texts import shown
from controller.devices.engine import HeldImage
from controller.schema.images import ImageView


def image_view(image: HeldImage) -> ImageView:
    """Return an image on a server."""
    return ImageView(
        server=image.server,
        image_id=shown(image.id),
        names=[shown(name) for name in image.names],
        size_bytes=image.size_bytes,
        jobs=[shown(job) for job in image.jobs],
        used_at=image.used_at,
    )
