"""What the API asks about another engine; without one, it is refused."""

from __future__ import annotations

from controller.base.errors import ServiceError
from controller.observed.desk import ObservedDesk
from controller.schema.engine import AllocationAnswerView, EngineChecksView, EngineView
from controller.service.features import Engines


class EngineDesk:
    """Answers about the site's other engine. ServiceError ``not_found`` on a site without one."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def status(self) -> EngineView:
        """Return how it stands with the engine."""
        return self._there().status()

    async def check(self) -> EngineChecksView:
        """Examine the engine's set-up."""
        return await self._there().check()

    async def allocated(self, number: str) -> AllocationAnswerView:
        """Arrange the light of a job that the engine has just given endpoints."""
        return await self._there().allocated(number)

    def _there(self) -> ObservedDesk:
        for desk in self._engines.values():
            return desk
        raise ServiceError(
            "not_found",
            "this site has no other engine",
            object="engine",
            hint="the site file's section `engine` names one; see docs/slurm.md",
        )
