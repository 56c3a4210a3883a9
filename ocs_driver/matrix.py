"""Implements the driver interface for matrix switches, whose circuits are plain port pairs.

The device has pairs; the interface has duplex circuits with owners. Two opposite pairs are one
duplex circuit, and the driver's ledger stores its owner.
"""

from __future__ import annotations

import asyncio
import dataclasses
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from base import clock
from ocs_driver.base import (
    Alarm,
    ApplyResult,
    Capabilities,
    Circuit,
    CircuitMap,
    CircuitRequest,
    CircuitState,
    Mode,
    OcsEvent,
    Pair,
    PairResult,
    PortHealth,
    PortInfo,
    PortPower,
)
from ocs_driver.converge import ConvergingDriver
from ocs_driver.diff import LIGHT
from ocs_driver.errors import OcsDenied, OcsError, wrong_dialect
from ocs_driver.events import EventFeed
from ocs_driver.ledger import CircuitClaims, default_folder
from ocs_driver.pairs import WirePair, key, merge
from ocs_driver.ports import MatrixPorts
from ocs_driver.profile import SwitchProfile

_T = TypeVar("_T")

_DISK = ThreadPoolExecutor(4, thread_name_prefix="ocs-ledger")
"""Dedicated threads, so that a change of light does not wait for other work."""
_READINGS = 3
"""Maximum number of attempts to read the pairs when changes interleave with a read."""


@dataclass(slots=True, frozen=True)
class Identity:
    """The identity that a device reports."""

    vendor: str
    model: str
    serial: str
    firmware: str
    ports: MatrixPorts


class MatrixDriver(ConvergingDriver):
    """Implements the interface with ``_identify``, ``_pairs``, ``_connect`` and ``_disconnect``."""

    def __init__(
        self,
        name: str,
        group: str,
        *,
        profile: SwitchProfile,
        state_dir: Path | None = None,
        older_state_dir: Path | None = None,
    ) -> None:
        super().__init__(name, group)
        self.profile = profile
        self._state_dir = state_dir or default_folder()
        self._older_state_dir = older_state_dir
        self._feed = EventFeed()
        self._identity: Identity | None = None
        self._made_at: dict[Pair, float] = {}

    # -- vendor-specific part ----------------------------------------------------------

    @abstractmethod
    async def _identify(self) -> Identity:
        """Read the identity of the device."""

    @abstractmethod
    async def _pairs(self) -> list[WirePair]:
        """Read all pairs with their states."""

    @abstractmethod
    async def _connect(self, pairs: Sequence[Pair], timeout_s: float) -> list[OcsError | None]:
        """Make pairs in one bulk; return a refusal or None for each."""

    @abstractmethod
    async def _disconnect(self, pairs: Sequence[Pair], timeout_s: float) -> list[OcsError | None]:
        """Remove pairs in one bulk; return a refusal or None for each."""

    @abstractmethod
    async def _light(self) -> Mapping[str, float | None]:
        """Return the power readings by port; empty if the switch measures nothing."""

    async def _leaves(self, port: str) -> bool:
        """Return whether light leaves one port; True when the switch cannot measure it."""
        del port
        return True

    async def _failed_ports(self) -> frozenset[str]:
        """Return the ports that the device reports as failed."""
        return frozenset()

    async def _labels(self) -> Mapping[str, str]:
        """Return the operators' labels of ports."""
        return {}

    # -- reading -------------------------------------------------------------------------

    async def identity(self) -> Identity:
        """Return the identity of the device; it is read once."""
        if self._identity is None:
            try:
                self._identity = await self._identify()
            except OcsDenied as error:
                raise wrong_dialect(self.name, error) from None
        return self._identity

    async def capabilities(self) -> Capabilities:
        """Return the device's identity with its known or measured behaviour."""
        who = await self.identity()
        return Capabilities(
            vendor=who.vendor,
            model=who.model,
            serial=who.serial,
            firmware=who.firmware,
            duplex=who.ports.reciprocal,
            stores_owner=False,
            stores_name=False,
            busy_port=self.profile.busy_port,
            switch_time_s=self.profile.switch_time_s,
            bulk_time_s=self.profile.bulk_time_s,
        )

    async def facts(self) -> Mapping[str, Any]:
        """Return the shape of the matrix and dialect-specific facts."""
        ports = (await self.identity()).ports
        if ports.reciprocal:
            return {"ports": {"any": ports.inputs}}
        shape = {
            "inputs": ports.inputs,
            "outputs": ports.outputs,
            "first_input": ports.first_input,
            "first_output": ports.first_output,
        }
        return {"ports": shape}

    async def read(self) -> CircuitMap:
        """Return the circuits; opposite pairs of one owner are one duplex circuit."""
        ports = (await self.identity()).ports
        inward = await self._inward()
        shown = []
        for circuit in inward.circuits:
            a, b = ports.outward(circuit.a, circuit.b, duplex=circuit.duplex)
            shown.append(dataclasses.replace(circuit, a=a, b=b))
        return CircuitMap(tuple(shown), inward.taken_at)

    async def inventory(self) -> tuple[PortInfo, ...]:
        """Return all ports with the power readings of their monitors."""
        ports = (await self.identity()).ports
        found = await self._pairs()
        light, failed = await self._light(), await self._failed_ports()
        labels = await self._labels()
        states: dict[str, CircuitState] = {}
        for wire in found:
            states |= {wire.pair.a: wire.state, wire.pair.b: wire.state}
        return tuple(
            PortInfo(
                port,
                _health(states.get(port), failed=port in failed),
                labels.get(port, ""),
                *_in_and_out(ports, light, port),
            )
            for port in ports.all
        )

    async def power(self, ports: Sequence[str]) -> tuple[PortPower, ...]:
        """Return the light on the given ports; None where it is dark or not measured."""
        numbering = (await self.identity()).ports
        known = frozenset(numbering.all)
        for port in ports:
            if port not in known:
                raise OcsError("bad_port", port, "the switch has no such port")
        light = await self._light()
        return tuple(PortPower(p, *_in_and_out(numbering, light, p)) for p in ports)

    async def alarms(self) -> tuple[Alarm, ...]:
        """Return failed ports, and circuits without light."""
        found = [
            Alarm(port, "critical", "the port has failed")
            for port in sorted(await self._failed_ports(), key=int)
        ]
        dark = [c for c in (await self.read()).circuits if c.state is CircuitState.FAILED]
        return (*found, *(Alarm(c.name, "major", c.detail) for c in dark))

    def subscribe(self) -> AsyncIterator[OcsEvent]:
        """Yield events from now until the driver is closed."""
        return self._feed.subscribe()

    # -- changing ------------------------------------------------------------------------

    async def apply(
        self,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        mode: Mode = Mode.SAFE,
        deadline_s: float = 10.0,
    ) -> ApplyResult:
        """See ``OcsDriver.apply``. ``Mode.OVERWRITE`` adopts a lit circuit without touching it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline_s
        ports = (await self.identity()).ports
        asked = {ports.inward(r): r for r in (*delete, *make)}
        if mode is Mode.OVERWRITE:
            await self._adopt([ports.inward(r) for r in make], await self._read_in_time(until))
        done = await super().apply(
            [ports.inward(r) for r in delete],
            [ports.inward(r) for r in make],
            mode=mode,
            deadline_s=until - loop.time(),
        )
        present = {key(pair) for c in done.circuits.circuits for pair in ports.wire(c)}
        ended = {key(p) for r in asked for p in ports.wire(r)} - present
        if ended:
            await self._in_ledger(lambda ledger: ledger.release(ended))
        names = {(i.a, i.b, i.duplex): request for i, request in asked.items()}
        results = tuple(self._named(result, ports, names) for result in done.results)
        shown = tuple(
            dataclasses.replace(c, a=a, b=b)
            for c in done.circuits.circuits
            for a, b in [ports.outward(c.a, c.b, duplex=c.duplex)]
        )
        return ApplyResult(results, CircuitMap(shown, done.circuits.taken_at))

    async def check(
        self,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        mode: Mode = Mode.SAFE,
    ) -> None:
        """See ``OcsDriver.check``."""
        await self.identity()
        await super().check(self._inwards(delete), self._inwards(make), mode=mode)

    def _inwards(self, requests: Sequence[CircuitRequest]) -> list[CircuitRequest]:
        if self._identity is None:
            raise OcsError("not_connected", self.name, "connect first")
        return [self._identity.ports.inward(r) for r in requests]

    def _validate(self, requests: Sequence[CircuitRequest]) -> None:
        """Do nothing: the translation to internal names has validated the requests."""

    async def _read_map(self) -> CircuitMap:
        return await self._inward()

    async def _may_be_lit(self, request: CircuitRequest) -> bool:
        return await self._leaves((await self.identity()).ports.wire(request)[-1].b)

    async def _delete_bulk(
        self, circuits: Sequence[Circuit], timeout_s: float
    ) -> list[OcsError | None]:
        ports = (await self.identity()).ports
        pairs = [(i, pair) for i, c in enumerate(circuits) for pair in ports.wire(c)]
        errors = await self._disconnect([pair for _, pair in pairs], timeout_s)
        return _first_errors(len(circuits), [i for i, _ in pairs], errors)

    async def _prepare(self, requests: Sequence[CircuitRequest]) -> None:
        """Claim the circuits before they are made; slow disk I/O is acceptable here."""
        ports = (await self.identity()).ports
        pairs = [key(pair) for request in requests for pair in ports.wire(request)]
        await self._in_ledger(lambda ledger: ledger.claim(pairs))

    async def _make_bulk(
        self, requests: Sequence[CircuitRequest], timeout_s: float
    ) -> list[OcsError | None]:
        ports = (await self.identity()).ports
        pairs = [(i, pair) for i, r in enumerate(requests) for pair in ports.wire(r)]
        wanted = [pair for _, pair in pairs]
        started = asyncio.get_running_loop().time()
        self._made_at.update(dict.fromkeys(wanted, started))
        errors = await self._connect(wanted, timeout_s)
        merged = _first_errors(len(requests), [i for i, _ in pairs], errors)
        # If one half was refused, the other would carry light one way only: remove it.
        halves = [
            pair
            for (i, pair), error in zip(pairs, errors, strict=True)
            if error is None and merged[i] is not None
        ]
        if halves:
            await self._disconnect(halves, timeout_s)
        return merged

    async def adopt(self, circuits: Sequence[CircuitRequest]) -> None:
        """See ``OcsDriver.adopt``."""
        ports = (await self.identity()).ports
        inward = await self._inward()
        unowned = CircuitMap(tuple(c for c in inward.circuits if not c.owner), inward.taken_at)
        await self._adopt([ports.inward(c) for c in circuits], unowned)

    async def _adopt(self, wanted: Sequence[CircuitRequest], now: CircuitMap) -> None:
        ports = (await self.identity()).ports
        adopted = [
            key(pair)
            for request in wanted
            if (found := now.find(request)) is not None
            and not found.belongs_to(self.group)
            and found.state in LIGHT
            for pair in ports.wire(found)
        ]
        if adopted:
            await self._in_ledger(lambda ledger: ledger.claim(adopted))

    # -- helpers -------------------------------------------------------------------------

    async def _in_ledger(self, use: Callable[[CircuitClaims], _T]) -> _T:
        """Use the ledger in a thread, so that a stalled disk does not block the event loop."""
        serial = (await self.identity()).serial
        # The file's name has an IPv6 address without brackets, as it always had.
        switch = f"{serial}@{self.name.replace('[', '').replace(']', '')}"
        ledger = CircuitClaims(self._state_dir, switch, self.group, older=self._older_state_dir)
        return await asyncio.get_running_loop().run_in_executor(_DISK, use, ledger)

    async def _inward(self) -> CircuitMap:
        """Read the circuits with the names of duplex fibers."""
        ports = (await self.identity()).ports
        for _ in range(_READINGS):
            revision = self.revision
            found = await self._pairs()
            overtaken = self.revision != revision  # a change interleaved: part of it may be stale
            if not overtaken:
                break
        taken_at = clock.time()
        present = {w.pair for w in found}
        keys = {key(pair) for pair in present}
        owners = await self._in_ledger(lambda ledger: ledger.owners(keys, forget=not overtaken))
        if not self.changing and not overtaken:
            self._made_at = {p: at for p, at in self._made_at.items() if p in present}
        return CircuitMap(tuple(merge(ports, found, owners)), taken_at)

    def _young(self, pair: Pair) -> bool:
        """Whether a pair was made so recently that its light may not have arrived yet."""
        made_at = self._made_at.get(pair)
        now = asyncio.get_running_loop().time()
        return made_at is not None and now - made_at < self.profile.settle_s

    def _judge_light(self, pair: Pair, light: Mapping[str, float | None]) -> WirePair:
        """Derive a pair's state from the power monitors; without monitors it counts as tuned."""
        if pair.b not in light:
            return WirePair(pair)
        entering, leaving = light.get(pair.a), light[pair.b]
        words = f"in {_dbm(entering)}, out {_dbm(leaving)}"
        if entering is not None and leaving is not None:
            return WirePair(pair, CircuitState.TUNED, words)
        dark = f"enters at {pair.a}" if entering is None else f"leaves at {pair.b}"
        state = CircuitState.TUNING if self._young(pair) else CircuitState.FAILED
        return WirePair(pair, state, f"no light {dark} ({words})")

    @staticmethod
    def _named(
        result: PairResult,
        ports: MatrixPorts,
        names: Mapping[tuple[str, str, bool], CircuitRequest],
    ) -> PairResult:
        request = names.get((result.a, result.b, result.duplex))
        if request is not None:
            return dataclasses.replace(result, a=request.a, b=request.b)
        a, b = ports.outward(result.a, result.b, duplex=result.duplex)
        return dataclasses.replace(result, a=a, b=b)


def _first_errors(
    count: int, of: Sequence[int], errors: Sequence[OcsError | None]
) -> list[OcsError | None]:
    merged: list[OcsError | None] = [None] * count
    for i, error in zip(of, errors, strict=True):
        merged[i] = merged[i] or error
    return merged


def _dbm(power: float | None) -> str:
    return "dark" if power is None else f"{power:.1f} dBm"


def _health(state: CircuitState | None, *, failed: bool) -> PortHealth:
    if failed or state is CircuitState.FAILED:
        return PortHealth.FAILED
    if state is None:
        return PortHealth.BLOCKED
    return PortHealth.TUNED if state is CircuitState.TUNED else PortHealth.TUNING


def _in_and_out(
    ports: MatrixPorts, light: Mapping[str, float | None], port: str
) -> tuple[float | None, float | None]:
    """Return the power at a port; an input also shows the power that leaves its paired output."""
    if ports.reciprocal or ports.is_output(port):
        return None, light.get(port)
    return light.get(port), light.get(ports.beside(port))
