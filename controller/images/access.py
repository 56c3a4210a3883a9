"""Which projects may run which images. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from container_mgr.ranks.images import repository
from controller.base.errors import ServiceError
from controller.base.texts import clipped
from sitefile import Registry


class ImageAccess:
    """The site file's registries. Images of any other registry are for every project."""

    def __init__(self, registries: Iterable[Registry]) -> None:
        self._registries = {registry.name: registry for registry in registries}

    def registry(self, image: str) -> Registry | None:
        """Return the listed registry that an image's name leads to; None for any other."""
        return self._registries.get(repository(image).partition("/")[0])

    def check(self, image: str, project: str) -> None:
        """Raise ServiceError ``forbidden`` unless a project may run images of this name."""
        registry = self.registry(image)
        if registry is not None and project not in registry.projects:
            raise ServiceError(
                "forbidden",
                f"images of registry {registry.name} are not for project {project}",
                object=f"image/{clipped(image)}",
                hint="use another image, or have the project added to the site file's registries",
            )

    def check_present(self, image: str, names: Iterable[str], project: str) -> None:
        """Raise ServiceError ``forbidden`` unless a project may run an image that is on a server.

        ``names`` are the engine's. An image that was asked for by one of its names is judged by
        that name. One that was asked for by its id is judged by all its names: another project may
        have pulled it.
        """
        known = list(names)
        if repository(image) in {repository(name) for name in known}:
            self.check(image, project)
            return
        for name in known:
            self.check(name, project)
