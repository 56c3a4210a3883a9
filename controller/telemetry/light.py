"""Measures the light at the ports of the optical switches and keeps its history."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import structlog

from controller.devices.switches import Switches
from controller.state.state import State
from controller.telemetry.history import (
    LIGHT_COLUMNS,
    LIGHT_LEVELS,
    HistoryWindow,
    RingBuffer,
    Values,
)
from controller.telemetry.latest import LatestReadings
from controller.transaction.circuits import ends_on
from ocs_driver.base import PortPower
from ocs_driver.errors import OcsError
from ocs_driver.light import lit
from readings.reading import Object

log = structlog.get_logger(__name__)

EVERY_S = 15.0
SOON_S = 1.0
"""Pause between attempts until the first switch has been measured."""


_NOTHING: Mapping[str, PortPower] = {}


class OpticalPower:
    """The latest measurement of every port that the site uses, and the history of them all."""

    def __init__(
        self,
        state: State,
        switches: Switches,
        readings: LatestReadings,
        directory: Path | None = None,
    ) -> None:
        """Keep the history in ``directory``, or in memory if it is None. ServiceError.

        ``readings`` gets the switches' readings.
        """
        self._state = state
        self._readings = readings
        self._switches = switches
        self.ports = _ports_of(state)
        """Per optical switch: the ports that the site uses, and what is cabled to each."""
        self._latest: dict[str, dict[str, PortPower]] = {}
        names = [f"{switch}/{port}" for switch, ports in self.ports.items() for port in ports]
        self._place = {name: i for i, name in enumerate(names)}
        self._history = RingBuffer(
            directory, names, stem="light", columns=LIGHT_COLUMNS, levels=LIGHT_LEVELS
        )

    async def run(self) -> None:
        """Measure at the start, then in the middle of every interval of 15 s."""
        while True:
            await self.measure()
            rest_s = EVERY_S - (self._state.clock() - EVERY_S / 2) % EVERY_S
            await asyncio.sleep(rest_s if self._latest else SOON_S)

    async def measure(self) -> None:
        """Measure at every connected switch; discard the old values of one that fails."""
        connected = self._switches.connected()
        for switch, ports in self.ports.items():
            if switch in connected:
                await self._read(switch, tuple(ports))
            else:
                self._latest.pop(switch, None)
        if self._latest:
            self._history.append(self._state.clock(), self._row())

    def _row(self) -> Values:
        row = np.full((len(self._place), len(LIGHT_COLUMNS)), np.nan, dtype=np.float32)
        for switch, ports in self._latest.items():
            for port, power in ports.items():
                place = self._place.get(f"{switch}/{port}")
                if place is not None:
                    values = (power.in_dbm, power.out_dbm)
                    row[place] = [np.nan if v is None else v for v in values]
        return row

    async def _read(self, switch: str, ports: tuple[str, ...]) -> None:
        try:
            measured = await self._switches.power(switch, ports)
        except (OcsError, OSError, TimeoutError) as error:
            log.warning("power_not_read", switch=switch, error=str(error))
            self._latest.pop(switch, None)
            return
        self._latest[switch] = {p.port: p for p in measured}
        if any(power.in_dbm is not None for power in measured):  # else it may have no meters
            count = sum(lit(power.in_dbm) is not None for power in measured)
            self._readings.report(Object.SWITCH, switch, {"lit_ports": count})

    def latest(self, switch: str) -> Mapping[str, PortPower]:
        """Return a switch's latest measurement by port; each measurement is a new mapping."""
        return self._latest.get(switch, _NOTHING)

    def at(self, switch: str, port: str) -> PortPower | None:
        """Return a port's latest measurement, None before the first."""
        return self.latest(switch).get(port)

    def window(self, switch: str, port: str, since_s: float) -> HistoryWindow:
        """Return the history of one of ``ports`` over the last ``since_s`` seconds."""
        now = self._state.clock()
        return self._history.read(now - since_s, now, of=[f"{switch}/{port}"])

    async def flush(self) -> None:
        """Wait until the disk has the whole history, for a bounded time."""
        await self._history.flush()


def _ports_of(state: State) -> Mapping[str, Mapping[str, str]]:
    """Return per optical switch the ports that the site uses, and what is cabled to each."""
    return {
        switch.name: {port: str(end) for port, end in ends_on(state.site, switch.name).items()}
        for switch in state.site.switches
    }
