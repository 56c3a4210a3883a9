"""Light at the ports of the optical switches, its history, and the path it shows."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import structlog

from controller.base.errors import ServiceError
from controller.devices.aggregators import AttachPoint
from controller.devices.switches import Switches
from controller.schema.live import HopView, PortPowerView, PowerSeriesView, TraceView
from controller.state.state import State
from controller.telemetry.history import LIGHT_COLUMNS, LIGHT_LEVELS, RingBuffer, Values
from ocs_driver.base import PortPower
from ocs_driver.errors import OcsError
from sitefile import EndpointCable

log = structlog.get_logger(__name__)

EVERY_S = 15.0
SOON_S = 1.0
"""While no switch was measured yet."""


_NOTHING: Mapping[str, PortPower] = {}


class OpticalPower:
    """The latest measurement of every port that the site uses."""

    def __init__(self, state: State, switches: Switches, directory: Path | None = None) -> None:
        """The history lies in ``directory``; in memory without one. ServiceError."""
        self._state = state
        self._switches = switches
        self._ports = _ports_of(state)
        self._seen: dict[str, dict[str, PortPower]] = {}
        names = [f"{switch}/{port}" for switch, ports in self._ports.items() for port in ports]
        self._place = {name: i for i, name in enumerate(names)}
        self._history = RingBuffer(
            directory, names, stem="light", columns=LIGHT_COLUMNS, levels=LIGHT_LEVELS
        )

    async def run(self) -> None:
        """Measure in the middle of every fifteen seconds, for ever; at once at the start."""
        while True:
            await self.look()
            rest_s = EVERY_S - (self._state.clock() - EVERY_S / 2) % EVERY_S
            await asyncio.sleep(rest_s if self._seen else SOON_S)

    async def look(self) -> None:
        """Measure at every switch that answers; one that does not shows nothing old."""
        answering = self._switches.connected()
        for switch, ports in self._ports.items():
            if switch in answering:
                await self._read(switch, tuple(ports))
            else:
                self._seen.pop(switch, None)
        if self._seen:
            self._history.append(self._state.clock(), self._row())

    def _row(self) -> Values:
        row = np.full((len(self._place), len(LIGHT_COLUMNS)), np.nan, dtype=np.float32)
        for switch, ports in self._seen.items():
            for port, power in ports.items():
                place = self._place.get(f"{switch}/{port}")
                if place is not None:
                    told = (power.in_dbm, power.out_dbm)
                    row[place] = [np.nan if v is None else v for v in told]
        return row

    async def _read(self, switch: str, ports: tuple[str, ...]) -> None:
        try:
            measured = await self._switches.power(switch, ports)
        except (OcsError, OSError, TimeoutError) as error:
            log.warning("power_not_read", switch=switch, error=str(error))
            self._seen.pop(switch, None)
            return
        self._seen[switch] = {p.port: p for p in measured}

    def seen(self, switch: str) -> Mapping[str, PortPower]:
        """Return what was measured last at a switch, by port; a new mapping per measurement."""
        return self._seen.get(switch, _NOTHING)

    def views(self) -> list[PortPowerView]:
        """Return every port's light."""
        return [
            PortPowerView(
                switch=switch,
                port=port,
                far=far,
                power_in_dbm=seen.in_dbm if (seen := self._of(switch, port)) else None,
                power_out_dbm=seen.out_dbm if seen else None,
            )
            for switch, ports in self._ports.items()
            for port, far in ports.items()
        ]

    def series(self, switch: str, port: str, since_s: float) -> PowerSeriesView:
        """Return a port's light over the last ``since_s`` seconds. ServiceError ``not_found``."""
        name = f"{switch}/{port}"
        if name not in self._place:
            raise ServiceError(
                "not_found",
                f"the site uses no port {name} of an optical switch",
                object=f"switch/{switch}",
                hint="see `lightloom trace ENDPOINT`, or the list of powers",
            )
        now = self._state.clock()
        window = self._history.read(now - since_s, now)
        light_in, light_out = window.values[:, self._place[name]].T.tolist()
        return PowerSeriesView(
            switch=switch,
            port=port,
            far=self._ports[switch][port],
            interval_s=window.interval_s,
            times=window.times.tolist(),
            power_in_dbm=[_known(v) for v in light_in],
            power_out_dbm=[_known(v) for v in light_out],
        )

    def flush(self) -> None:
        """Hand the history to the disk."""
        self._history.flush()

    def trace(self, cable: EndpointCable) -> TraceView:
        """Follow an endpoint's light to its aggregator, hop by hop."""
        at = self._state.attachments.get(cable.name)
        device, port = cable.fiber.device, cable.fiber.port
        hops = [HopView(kind="endpoint", at=f"{cable.server}/{cable.nic}", detail=cable.model)]
        if device not in self._ports:  # hard-wired: no light of ours on the way
            hops.append(HopView(kind="aggregator", at=f"{device}/{port}", detail="fixed cable"))
            return TraceView(endpoint=cable.name, complete=True, hops=hops)
        near = self._of(device, port)
        hops.append(_optical(f"{device}/{port}", "from the endpoint's fiber", near))
        if at is None:
            return TraceView(
                endpoint=cable.name, complete=False, hops=hops, reason="no circuit: it is dark"
            )
        far_port = self._state.site.aggregator(at.aggregator).fibers[at.port].port
        far = self._of(device, far_port)
        hops.append(_optical(f"{device}/{far_port}", "to the aggregator's fiber", far))
        hops.append(HopView(kind="aggregator", at=f"{at.aggregator}/{at.port}"))
        up, down = _loss(near, far), _loss(far, near)
        hops[1].loss_db, hops[2].loss_db = up, down
        return TraceView(
            endpoint=cable.name, complete=True, hops=hops, loss_up_db=up, loss_down_db=down
        )

    def _of(self, switch: str, port: str) -> PortPower | None:
        return self._seen.get(switch, {}).get(port)


def _known(dbm: float) -> float | None:
    return None if math.isnan(dbm) else round(dbm, 3)


def _optical(at: str, detail: str, power: PortPower | None) -> HopView:
    return HopView(
        kind="switch",
        at=at,
        detail=detail,
        power_in_dbm=power.in_dbm if power else None,
        power_out_dbm=power.out_dbm if power else None,
    )


def _loss(source: PortPower | None, target: PortPower | None) -> float | None:
    """What the switch takes from light that enters at ``source`` and leaves at ``target``, dB."""
    if source is None or target is None:
        return None
    if source.in_dbm is None or target.out_dbm is None:
        return None
    return round(source.in_dbm - target.out_dbm, 2)


def _ports_of(state: State) -> Mapping[str, Mapping[str, str]]:
    """Per optical switch: its ports that the site uses, and what hangs on each."""
    found: dict[str, dict[str, str]] = {s.name: {} for s in state.site.switches}
    for endpoint in state.site.endpoints:
        if endpoint.fiber.device in found:
            found[endpoint.fiber.device][endpoint.fiber.port] = endpoint.name
    for aggregator in state.site.aggregators:
        for port, far in aggregator.fibers.items():
            point = AttachPoint(aggregator.name, port)
            found[far.device][far.port] = f"{point.aggregator}/{point.port}"
    return found
