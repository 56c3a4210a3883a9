"""What the API asks about another engine; a site without one says so."""

from __future__ import annotations

from typing import Literal

from controller.base.errors import ServiceError
from controller.observed import views
from controller.observed.desk import ObservedDesk
from controller.schema.engine import AllocationAnswerView, EngineChecksView, EngineView


class EngineDesk:
    """Answers about the other engine. ServiceError ``not_found`` on a site without one."""

    def __init__(self, desk: ObservedDesk | None, isolation: Literal["open", "job"]) -> None:
        self._desk = desk
        self._isolation = isolation

    def status(self) -> EngineView:
        """Return how it stands with the engine."""
        return views.engine_view(self._there().status(), self._isolation)

    async def check(self) -> EngineChecksView:
        """Examine the engine's set-up."""
        desk = self._there()
        return views.checks_view(desk.status().kind, await desk.check())

    async def allocated(self, number: str) -> AllocationAnswerView:
        """Arrange the light of a job that the engine has just given endpoints."""
        return views.allocation_view(await self._there().allocated(number))

    def _there(self) -> ObservedDesk:
        if self._desk is None:
            raise ServiceError(
                "not_found",
                "this site has no other engine",
                object="engine",
                hint="the site file's section `engine` names one; see docs/slurm.md",
            )
        return self._desk
