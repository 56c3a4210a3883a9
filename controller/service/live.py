"""What the API asks about light and samples over time."""

from __future__ import annotations

from collections.abc import Collection

from controller.base.errors import ServiceError
from controller.schema.live import PortPowerView, PowerSeriesView, SeriesView, TraceView
from controller.state.state import State
from controller.telemetry.light import OpticalPower
from controller.telemetry.throughput import Telemetry
from controller.views import light
from controller.views.series import series_of


class LiveDesk:
    """Shows what is measured all the time."""

    def __init__(self, state: State, telemetry: Telemetry, power: OpticalPower) -> None:
        self._state = state
        self._telemetry = telemetry
        self._power = power

    async def series(self, since_s: float, jobs: Collection[str] | None = None) -> SeriesView:
        """Return samples of the last ``since_s`` seconds, of ``jobs`` (None is all)."""
        telemetry = self._telemetry
        return await series_of(self._state, telemetry.history, since_s, telemetry.gpu_history, jobs)

    def power(self) -> list[PortPowerView]:
        """Return the light at every port of the optical switches."""
        return light.port_powers(self._power)

    def power_series(self, switch: str, port: str, since_s: float) -> PowerSeriesView:
        """Return a port's light over the last ``since_s`` seconds. ServiceError ``not_found``."""
        return light.power_series(self._power, switch, port, since_s)

    def trace(self, endpoint: str) -> TraceView:
        """Follow an endpoint's light to its aggregator. ServiceError ``not_found``."""
        cable = self._state.cables.get(endpoint)
        if cable is None:
            raise ServiceError(
                "not_found",
                f"the site has no endpoint {endpoint}",
                object=f"endpoint/{endpoint}",
                hint="see `lightloom get endpoints`",
            )
        return light.trace(self._state, self._power, cable)
