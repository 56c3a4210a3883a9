"""One open driver per optical switch: kept connected, and not called while disconnected."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import structlog

from ocs_driver.base import (
    Alarm,
    ApplyResult,
    Capabilities,
    CircuitMap,
    CircuitRequest,
    Mode,
    OcsDriver,
    PortInfo,
    PortPower,
)
from ocs_driver.errors import OcsError, OcsTimeout, OcsUnreachable

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT_S = 15.0
READ_TIMEOUT_S = 20.0
CHECK_EVERY_S = 5.0
"""How often an idle session is checked by reading the map; also the age of a circuit list."""
BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(slots=True)
class _Switch:
    """One switch: its driver, which serialises its calls, and its last known state."""

    driver: OcsDriver
    there: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while the session is up."""
    error: str = "not connected yet"
    capabilities: Capabilities | None = None
    circuits: CircuitMap | None = None
    known: asyncio.Event = field(default_factory=asyncio.Event)
    changing: int = 0
    """Changes that run or wait; the periodic reading is skipped meanwhile."""
    changed_at: float = 0.0
    """When the last change was read back, in the loop's time."""
    read_at: float = 0.0
    """When the last reading that was answered began, in the loop's time."""
    doubted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the session is to be checked at once."""

    @property
    def connected(self) -> bool:
        """Whether the session is up."""
        return self.there.is_set()


class SwitchBank:
    """All optical switches of a site, by name."""

    def __init__(
        self, drivers: dict[str, OcsDriver], on_change: Callable[[str, bool], None]
    ) -> None:
        """``on_change(switch, connected)`` is called on the loop, after each first good read."""
        self._switches = {name: _Switch(driver) for name, driver in drivers.items()}
        self._on_change = on_change
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._tasks = [
            asyncio.create_task(self._keep(name, entry), name=f"switch {name}")
            for name, entry in self._switches.items()
        ]

    async def stop(self) -> None:
        """Log out of all switches; circuits stay as they are."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for entry in self._switches.values():
            await _close(entry.driver)

    async def all_known(self) -> None:
        """Return once every switch was read."""
        await asyncio.gather(*(entry.known.wait() for entry in self._switches.values()))

    async def back(self, switch: str) -> None:
        """Return once the switch answers."""
        await self._switches[switch].there.wait()

    def connected(self) -> frozenset[str]:
        """Return the switches that answer."""
        return frozenset(name for name, entry in self._switches.items() if entry.connected)

    def answered_since(self, switch: str, since: float) -> bool:
        """Whether a switch has answered a question asked since a moment of the loop's time."""
        entry = self._switches[switch]
        if entry.read_at < since:
            entry.doubted.set()
        return entry.read_at >= since

    def error(self, switch: str) -> str:
        """Return why a switch does not answer, empty when it does."""
        return self._switches[switch].error

    def capabilities(self, switch: str) -> Capabilities | None:
        """Return the capabilities that the switch reports; None before the first contact."""
        return self._switches[switch].capabilities

    def last_map(self, switch: str) -> CircuitMap | None:
        """Return the map as read last, at most a few seconds old while connected."""
        return self._switches[switch].circuits

    async def read(self, switch: str) -> CircuitMap:
        """Read the circuits from the device. OcsError when it does not answer."""
        return await self._read(switch, self._connected(switch))

    async def optics(self, switch: str) -> tuple[tuple[PortInfo, ...], tuple[Alarm, ...]]:
        """Read all ports with their light, and the standing alarms. OcsError, TimeoutError."""
        entry = self._connected(switch)
        async with _understood(switch), asyncio.timeout(READ_TIMEOUT_S):
            return await entry.driver.inventory(), await entry.driver.alarms()

    async def apply(
        self,
        switch: str,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        deadline_s: float,
    ) -> ApplyResult:
        """Remove and make circuits of ours; foreign ones in the way are a conflict. OcsError."""
        entry = self._connected(switch)
        entry.changing += 1
        try:
            # The driver keeps the deadline; the margin is for its last read-back.
            async with _understood(switch), asyncio.timeout(deadline_s + READ_TIMEOUT_S):
                result = await entry.driver.apply(
                    delete, make, mode=Mode.SAFE, deadline_s=deadline_s
                )
        finally:
            entry.changing -= 1
        entry.circuits = result.circuits
        entry.changed_at = asyncio.get_running_loop().time()
        return result

    async def check(
        self, switch: str, delete: Sequence[CircuitRequest], make: Sequence[CircuitRequest]
    ) -> None:
        """Raise the OcsConflict that ``apply`` would raise now. OcsError, TimeoutError."""
        entry = self._connected(switch)
        async with _understood(switch), asyncio.timeout(READ_TIMEOUT_S):
            await entry.driver.check(delete, make)

    async def adopt(self, switch: str, circuits: Sequence[CircuitRequest]) -> None:
        """Note lit circuits without a known owner as ours. OcsError, TimeoutError."""
        entry = self._connected(switch)
        async with _understood(switch), asyncio.timeout(READ_TIMEOUT_S):
            await entry.driver.adopt(circuits)

    async def power(self, switch: str, ports: Sequence[str]) -> tuple[PortPower, ...]:
        """Measure light at some ports. OcsError, TimeoutError."""
        entry = self._connected(switch)
        async with _understood(switch), asyncio.timeout(READ_TIMEOUT_S):
            return await entry.driver.power(ports)

    def _connected(self, switch: str) -> _Switch:
        entry = self._switches[switch]
        if not entry.connected:
            raise OcsUnreachable("unreachable", switch, entry.error)
        return entry

    async def _read(self, switch: str, entry: _Switch) -> CircuitMap:
        began = asyncio.get_running_loop().time()
        async with _understood(switch), asyncio.timeout(READ_TIMEOUT_S):
            entry.circuits = await entry.driver.read()
        entry.read_at = began
        return entry.circuits

    async def _keep(self, name: str, entry: _Switch) -> None:
        """Connect, check the session periodically, reconnect with back-off; never returns."""
        failures = 0
        while True:
            try:
                await self._session(name, entry)
            except (OcsError, OSError, TimeoutError) as error:
                entry.error = str(error) or type(error).__name__
                log.warning("switch_away", switch=name, error=entry.error)
                failures = 0 if entry.connected else failures + 1
                if entry.connected:
                    entry.there.clear()
                    self._on_change(name, False)
            await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])

    async def _session(self, name: str, entry: _Switch) -> None:
        """Keep a session until the switch does not answer: OcsError."""
        async with _understood(name), asyncio.timeout(CONNECT_TIMEOUT_S):
            await entry.driver.connect()
            entry.capabilities = await entry.driver.capabilities()
        await self._read(name, entry)
        entry.error = ""
        entry.there.set()
        entry.known.set()
        log.info("switch_connected", switch=name, model=entry.capabilities.model)
        self._on_change(name, True)
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_EVERY_S):
                    await entry.doubted.wait()
            entry.doubted.clear()
            if entry.changing:  # a change checks the session itself by reading back
                continue
            began = loop.time()
            try:
                await self._read(name, entry)
            except (OcsError, TimeoutError):
                if not entry.changing and entry.changed_at < began:
                    raise


@contextlib.asynccontextmanager
async def _understood(switch: str) -> AsyncIterator[None]:
    """Turn an unexpected error in a driver into OcsTimeout, because the outcome is unknown."""
    try:
        yield
    except (OcsError, OSError, TimeoutError):
        raise
    except Exception as error:
        log.exception("switch_not_understood", switch=switch)
        why = f"its driver does not understand its answer ({type(error).__name__}: {error!s:.100})"
        raise OcsTimeout("bad_reply", switch, why) from error


async def _close(driver: OcsDriver) -> None:
    with contextlib.suppress(OcsError, OSError, TimeoutError):
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await driver.close()
