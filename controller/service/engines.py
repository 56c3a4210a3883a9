"""What the API asks about another engine; a site without one says so."""

from __future__ import annotations

from controller.base.errors import ServiceError
from controller.observed import views
from controller.observed.desk import ObservedDesk
from controller.schema.engine import AllocationAnswerView, EngineChecksView, EngineView
from controller.service.features import Engines
from sitefile import EnginePolicy


class EngineDesk:
    """Answers about the other engine. ServiceError ``not_found`` on a site without one."""

    def __init__(self, engines: Engines, policy: EnginePolicy | None) -> None:
        self._engines = engines
        self._policy = policy

    def status(self) -> EngineView:
        """Return how it stands with the engine."""
        desk, policy = self._there()
        return views.engine_view(desk.status(), policy.isolation)

    async def check(self) -> EngineChecksView:
        """Examine the engine's set-up."""
        desk, policy = self._there()
        return views.checks_view(policy.kind, await desk.check())

    async def allocated(self, number: str) -> AllocationAnswerView:
        """Arrange the light of a job that the engine has just given endpoints."""
        desk, _ = self._there()
        return views.allocation_view(await desk.allocated(number))

    def _there(self) -> tuple[ObservedDesk, EnginePolicy]:
        if self._policy is None or self._policy.kind not in self._engines:
            raise ServiceError(
                "not_found",
                "this site has no other engine",
                object="engine",
                hint="the site file's section `engine` names one; see docs/slurm.md",
            )
        return self._engines[self._policy.kind], self._policy
