"""What the API asks about the controller itself."""

from __future__ import annotations

from controller.base.errors import ServiceError
from controller.schema.live import HealthView
from controller.state.state import State
from controller.views.health import HealthViews


class HealthDesk:
    """Shows the controller's own state, and accepts a store that is an older copy."""

    def __init__(self, state: State, views: HealthViews) -> None:
        self._state = state
        self._views = views

    def health(self) -> HealthView:
        """Return the controller's own state and the devices it talks to."""
        return self._views.health()

    async def accept_store(self) -> HealthView:
        """Give up what the store, an older copy, does not have; return the health.

        ServiceError ``conflict`` when it is not an older copy.
        """
        if not self._state.unknown:
            raise ServiceError(
                "conflict", "the store knows all that servers have", object="controller"
            )
        await self._state.accept_store()
        text = "an operator accepted it: what it does not know is given up"
        self._state.events.add("warning", "controller", "StoreAccepted", text)
        return self._views.health()
