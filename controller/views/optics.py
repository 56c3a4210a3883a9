"""Reads the health of an optical switch's ports and its alarms on request.

A reading is a few commands on the switch's single session, which transactions need more: with
any number of clients, a switch is read at most once in FRESH_S, and only on request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from controller.base.errors import ServiceError
from controller.devices.switches import Switches
from controller.schema.fabric import AlarmView, OpticalPortView, OpticsView
from controller.transaction.circuits import ends_on
from ocs_driver.base import Alarm
from ocs_driver.errors import OcsError
from sitefile import CabledSite

SHOWN = 500
"""Largest number of a switch's alarms that are shown, and of characters of each text."""
FRESH_S = 4.0
"""A younger reading is reused."""


class Optics:
    """The latest reading of every switch. Runs on the loop that owns the state."""

    def __init__(self, site: CabledSite, switches: Switches, clock: Callable[[], float]) -> None:
        self._switches = switches
        self._clock = clock
        self._cabled = {s.name: ends_on(site, s.name).keys() for s in site.switches}
        self._read: dict[str, OpticsView] = {}
        self._busy = {name: asyncio.Lock() for name in self._cabled}

    async def read(self, switch: str) -> OpticsView:
        """Return a reading of ``switch``. ServiceError ``not_found`` or ``unavailable``."""
        if switch not in self._cabled:
            raise ServiceError(
                "not_found",
                f"switch {switch} does not exist",
                object=f"switch/{switch}",
                hint=f"there are: {', '.join(sorted(self._cabled))}",
            )
        async with self._busy[switch]:
            known = self._read.get(switch)
            if known is None or not 0 <= self._clock() - known.time < FRESH_S:
                known = self._read[switch] = await self._ask(switch)
            return known

    async def _ask(self, switch: str) -> OpticsView:
        try:
            ports, alarms = await self._switches.optics(switch)
        except (OcsError, OSError, TimeoutError) as error:
            raise ServiceError(
                "unavailable",
                f"{switch} cannot be read: {error or 'it did not answer in time'}",
                object=f"switch/{switch}",
                hint="see its state in `lightloom get switches`",
            ) from error
        wanted = self._cabled[switch]
        return OpticsView(
            switch=switch,
            time=self._clock(),
            ports=[
                OpticalPortView(
                    port=port.port,
                    health=port.health.value,
                    label=port.label[:SHOWN],
                )
                for port in ports
                if port.port in wanted
            ],
            alarms=_shown(alarms),
        )


def _shown(alarms: Sequence[Alarm]) -> list[AlarmView]:
    """Return the first alarms and the number of the others, which is not bounded."""
    views = [
        AlarmView(object=a.obj[:SHOWN], severity=a.severity, text=a.text[:SHOWN])
        for a in alarms[:SHOWN]
    ]
    if len(alarms) > SHOWN:
        more = f"and {len(alarms) - SHOWN} more"
        views.append(AlarmView(object="", severity="none", text=more))
    return views
