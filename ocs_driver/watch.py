"""Polls switches that send no notifications and reports changes as events.

Polling never disturbs switching: a round is skipped while circuits change, and own changes
are not reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from ocs_driver.base import Circuit, CircuitMap, EventKind, OcsEvent
from ocs_driver.converge import ConvergingDriver
from ocs_driver.errors import OcsError
from ocs_driver.events import EventFeed

_log = logging.getLogger(__name__)

POLL_S = 5.0
_STEP_DB = 1.0
"""A change of power below this is noise."""


class SwitchWatch:
    """Polls every ``poll_s`` seconds while there are subscribers."""

    def __init__(
        self, driver: ConvergingDriver, feed: EventFeed, *, poll_s: float = POLL_S
    ) -> None:
        self._driver = driver
        self._feed = feed
        self.poll_s = poll_s
        self._task: asyncio.Task[None] | None = None
        self._circuits: dict[str, Circuit] | None = None
        self._revision = -1
        self._alarms: dict[str, str] = {}
        self._power: dict[str, float | None] = {}

    def start(self) -> None:
        """Start polling."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"watch-{self._driver.name}")

    async def stop(self) -> None:
        """Stop polling."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def poll(self) -> None:
        """Poll once and report changes. Raises OcsError when the switch does not respond."""
        if self._driver.changing:
            return
        revision = self._driver.revision
        circuits = await self._driver.read()
        alarms = {a.obj: a for a in await self._driver.alarms()}
        ports = sorted({p for c in circuits.circuits for p in (c.a, c.b)})
        power = {p.port: p.out_dbm for p in await self._driver.power(ports)} if ports else {}
        if self._driver.changing or self._driver.revision != revision:
            return
        own = self._circuits is None or revision != self._revision
        if not own:
            self._report_circuits(circuits)
            self._report_power(power)
        for obj, alarm in alarms.items():
            if obj not in self._alarms:
                self._publish(EventKind.ALARM, obj, alarm.severity, alarm.text)
        for obj in self._alarms.keys() - alarms.keys():
            self._publish(EventKind.CLEAR, obj, "none", self._alarms[obj])
        self._circuits = {c.name: c for c in circuits.circuits}
        self._alarms = {obj: alarm.text for obj, alarm in alarms.items()}
        self._power = power
        self._revision = revision

    def _report_circuits(self, circuits: CircuitMap) -> None:
        before = self._circuits or {}
        now = {c.name: c for c in circuits.circuits}
        for name in sorted(now.keys() - before.keys()):
            self._publish(EventKind.CIRCUIT, name, "none", "another client made this circuit")
        for name in sorted(before.keys() - now.keys()):
            self._publish(EventKind.CIRCUIT, name, "none", "another client removed this circuit")

    def _report_power(self, power: dict[str, float | None]) -> None:
        for port in power.keys() & self._power.keys():
            was, now = self._power[port], power[port]
            moved = was is not None and now is not None and abs(now - was) >= _STEP_DB
            if moved or (was is None) != (now is None):
                text = "dark" if now is None else f"{now:.1f} dBm"
                before = "dark" if was is None else f"{was:.1f} dBm"
                self._publish(EventKind.POWER, port, "none", f"{text}, was {before}")

    def _publish(self, kind: EventKind, obj: str, severity: str, text: str) -> None:
        self._feed.publish(OcsEvent(kind, obj, severity, text))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.poll_s)
            if not self._feed.has_subscribers:
                continue
            try:
                await self.poll()
            except OcsError as error:
                _log.info("watching %s: %s", self._driver.name, error)
