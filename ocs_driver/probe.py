"""Measures the behaviour of a real switch and returns it as a personality file.

Without ``spare_ports`` it only reads. With them it makes and removes circuits on those
ports only, and refuses to start while any of them is in use. Values that it cannot measure
are the vendor's known values, and are listed as assumed.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from base import clock
from ocs_driver import open as open_driver
from ocs_driver.address import OcsAddress
from ocs_driver.base import BusyPort, CircuitRequest, CircuitState, Mode
from ocs_driver.converge import ConvergingDriver
from ocs_driver.errors import OcsConflict, OcsError
from ocs_driver.ports import MatrixPorts

Document = dict[str, Any]

_ROUNDS = 3
_LIGHT_S = 30.0
"""Longest wait for a mirror."""
_SESSIONS_TRIED = 16
_SATURATED = 0.8
"""A bulk has reached the bulk time below this fraction of the sum of its circuits' times."""

_ASSUMED: Mapping[str, Document] = {
    "calient": {
        "front_ends": ["calient-tl1-raw", "calient-tl1-prompt"],
        "sid": "CALIENT01TS",
        "platform": "",
        "timing": {"command_s": 0.005, "mirror_s": 0.025, "bulk_s": 0.2},
        "light": {
            "launch_dbm": -1.0, "floor_dbm": -50.0, "loss_mean_db": 1.6, "loss_spread_db": 0.1,
        },
    },
    "polatis": {
        "front_ends": ["polatis-tl1", "polatis-scpi", "polatis-netconf"],
        "sid": "( nil )",
        "platform": "OST",
        "timing": {"command_s": 0.005, "mirror_s": 0.025, "bulk_s": 0.05, "conflict_bulk_s": 0.1},
        "light": {
            "launch_dbm": -1.0, "floor_dbm": -60.0, "loss_mean_db": 1.0, "loss_spread_db": 0.1,
        },
    },
    "glimmerglass": {
        "front_ends": ["glimmerglass-tl1"],
        "sid": "GGN",
        "platform": "",
        "timing": {"command_s": 0.005, "mirror_s": 0.025, "bulk_s": 0.2},
        "light": {
            "launch_dbm": -12.0, "floor_dbm": -50.0, "loss_mean_db": 1.58, "loss_spread_db": 0.1,
            "los_dbm": -40.0,
        },
    },
}  # fmt: skip
_BEHAVIOUR: Document = {"busy": "reject", "preserve_map": True, "max_sessions": 0}


@dataclass(slots=True)
class _Findings:
    """The partial file and the names of its measured entries."""

    document: Document
    measured: list[str] = field(default_factory=list)

    def note(self, section: str, key: str, value: Any) -> None:
        self.document[section][key] = value
        self.measured.append(f"{section}.{key}")


async def probe(
    url: str,
    *,
    password: str | None = None,
    spare_ports: Sequence[str] = (),
    state_dir: Path | None = None,
) -> Document:
    """Return a personality. ``spare_ports`` (four or more) may be switched. Raises OcsError."""
    vendor = OcsAddress.parse(url).scheme.partition("+")[0]
    async with open_driver(url, password=password, state_dir=state_dir) as driver:
        known = await driver.capabilities()
        facts = await driver.facts()
        assumed = _ASSUMED[vendor]
        document: Document = {
            "vendor": known.vendor,
            "model": known.model,
            "front_ends": list(assumed["front_ends"]),
            "sid": assumed["sid"],
            "serial": known.serial,
            "firmware": known.firmware,
            "platform": assumed["platform"],
            "ports": {},
            "timing": dict(assumed["timing"]),
            "light": dict(assumed["light"]),
            "behaviour": dict(_BEHAVIOUR),
        }
        document |= {key: value for key, value in facts.items() if value}
        if not document["ports"]:
            raise OcsError("no_ports", url, "its port names are unknown")
        found = _Findings(document, ["vendor", "model", "serial", "firmware", *facts])
        if spare_ports:
            if not isinstance(driver, ConvergingDriver):
                raise OcsError(
                    "bad_url", url, "probe without ?ports=, with the device's own numbers"
                )
            await _Experiment(driver, list(spare_ports), found).run()
    if spare_ports:
        limit = await _session_limit(url, password, state_dir)
        found.note("behaviour", "max_sessions", limit)
    sections = ("timing", "light", "behaviour")
    every = [f"{section}.{key}" for section in sections for key in document[section]]
    document["probe"] = {
        "url": str(OcsAddress.parse(url)),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(clock.time())),
        "measured": found.measured,
        "assumed": [entry for entry in every if entry not in found.measured],
    }
    return document


class _Experiment:
    """Switches the spare ports, measures, and restores them."""

    def __init__(self, driver: ConvergingDriver, ports: list[str], found: _Findings) -> None:
        self._driver = driver
        self._ports = ports
        self._found = found
        half = len(ports) // 2
        self._circuits = [CircuitRequest(ports[i], ports[half + i]) for i in range(half)]

    async def run(self) -> None:
        if len(set(self._ports)) < 4:
            raise OcsError("too_few_ports", ",".join(self._ports), "name at least four spare ports")
        standing = await self._driver.read()
        for port in self._ports:
            if standing.on_port(port) or standing.on_port(self._beside(port)):
                raise OcsConflict("port_busy", port, "this port is in use: it is not spare")
        try:
            await self._times()
            await self._busy()
        finally:
            await self._clear()

    async def _times(self) -> None:
        ask_s = min([await self._timed_read() for _ in range(_ROUNDS)])
        single, command = [], []
        for _ in range(_ROUNDS):
            answered_s, lit_s = await self._make([self._one_path()])
            await self._clear()
            command.append(max(answered_s - ask_s, 0.0))
            single.append(max(lit_s - ask_s / 2, 0.0))
        self._found.note("timing", "mirror_s", round(statistics.median(single), 4))
        steps = 2 if self._two_step else 1
        self._found.note("timing", "command_s", round(statistics.median(command) / steps, 4))
        _, bulk_s = await self._make(self._circuits)
        await self._light()
        await self._clear()
        paths = len(self._circuits) * (1 if self._duplex else 2)
        one_by_one = statistics.median(single) * paths
        if bulk_s < _SATURATED * one_by_one or len(self._circuits) == 1:
            self._found.note("timing", "bulk_s", round(bulk_s, 4))

    @property
    def _duplex(self) -> bool:
        """Whether one path of the device carries light both ways."""
        return self._two_step or "any" in self._found.document["ports"]

    def _one_path(self) -> CircuitRequest:
        first = self._circuits[0]
        return CircuitRequest(first.a, first.b, self._duplex)

    @property
    def _two_step(self) -> bool:
        return str(self._found.document["vendor"]).lower() == "calient"

    async def _timed_read(self) -> float:
        now = asyncio.get_running_loop().time
        began = now()
        await self._driver.read()
        return now() - began

    async def _make(self, circuits: Sequence[CircuitRequest]) -> tuple[float, float]:
        """Make circuits; return the times until acceptance and from acceptance to light."""
        clock = asyncio.get_running_loop().time
        began = clock()
        errors = await self._driver.provoke(circuits)
        accepted = clock()
        for error in errors:
            if error is not None:
                raise error
        while True:
            now = await self._driver.read()
            found = [now.on_port(request.a) for request in circuits]
            states: set[CircuitState | None] = {c.state for at in found for c in at}
            if not all(found):
                states.add(None)
            if states == {CircuitState.TUNED}:
                return accepted - began, clock() - accepted
            if None in states or clock() - accepted > _LIGHT_S:
                raise OcsError(
                    "no_light",
                    ",".join(self._ports),
                    "the spare ports show no light: plug in fibers with light, or a loop",
                )
            await asyncio.sleep(0.001)

    async def _light(self) -> None:
        powers = {p.port: p for p in await self._driver.power(self._ports)}
        entering = [p.in_dbm for p in powers.values() if p.in_dbm is not None]
        losses = []
        for request in self._circuits:
            before, after = powers[request.a].in_dbm, powers[request.b].out_dbm
            if before is not None and after is not None:
                losses.append(before - after)
        if entering:
            self._found.note("light", "launch_dbm", round(statistics.median(entering), 1))
        if losses:
            self._found.note("light", "loss_mean_db", round(statistics.mean(losses), 2))
        if len(losses) > 2:
            self._found.note("light", "loss_spread_db", round(statistics.stdev(losses), 2))

    async def _busy(self) -> None:
        """Measure whether a make on a busy port is refused or displaces the old circuit."""
        low, free = sorted(self._ports, key=_natural)[:2]
        high = sorted(self._ports, key=_natural)[-1]
        first = CircuitRequest(low, high, self._duplex)
        second = CircuitRequest(free, high, self._duplex)
        await self._driver.provoke([first])
        (refusal,) = await self._driver.provoke([second])
        now = await self._driver.read()
        kept = bool(now.on_port(low))
        made = bool(now.on_port(free))
        if kept and not made and refusal is not None:
            self._found.note("behaviour", "busy", BusyPort.REJECT.value)
        elif made and not kept:
            self._found.note("behaviour", "busy", BusyPort.DISPLACE.value)

    def _beside(self, port: str) -> str:
        """Return the paired output of an input; the port itself without one."""
        shape = self._found.document["ports"]
        if "inputs" not in shape or not port.isdigit():
            return port
        return MatrixPorts(**shape).beside(port) or port

    async def _clear(self) -> None:
        standing = await self._driver.read()
        own = [
            CircuitRequest(c.a, c.b, c.duplex)
            for c in standing.circuits
            if c.owner == self._driver.group and {c.a, c.b} & set(self._ports)
        ]
        if own:
            await self._driver.apply(own, [], mode=Mode.SAFE)


def _natural(port: str) -> tuple[int, ...]:
    return tuple(int(part) for part in port.split(".") if part.isdigit())


async def _session_limit(url: str, password: str | None, state_dir: Path | None) -> int:
    """Open sessions until one is refused; return 0 if none is refused."""
    opened: list[Any] = []
    try:
        for _ in range(_SESSIONS_TRIED):
            driver = open_driver(url, password=password, state_dir=state_dir)
            try:
                await driver.connect()
            except OcsError:
                await driver.close()
                return len(opened)
            opened.append(driver)
        return 0
    finally:
        for driver in opened:
            await driver.close()
