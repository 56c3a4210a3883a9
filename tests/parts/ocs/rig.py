"""Provides an emulated switch per driver for the driver contract, and ways to disturb it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import ocs_driver
from base import clock
from ocs_driver import CircuitMap, OcsDriver
from ocs_driver.converge import ConvergingDriver
from ocs_driver.matrix import MatrixDriver
from testbed.ocs_emulator import Emulator, load_personality
from testbed.simulated.loop import settled

CREDENTIAL = "pa;ss:word"
FOREIGN = "FOREIGN"
PATIENCE_S = 60.0
"""Longest wait."""
FOREVER_S = 1e6
"""Time of mirrors that move during the whole test."""

Address = tuple[str, int]


async def until(fact: Callable[[], object], what: str) -> None:
    """Wait until ``fact()`` is true; fail with ``what`` otherwise."""
    deadline = clock.monotonic() + PATIENCE_S
    while not fact():
        assert clock.monotonic() < deadline, f"waited {PATIENCE_S:g} s: {what}"
        await settled()


@contextlib.contextmanager
def reserved(count: int) -> Iterator[list[Address]]:
    """Yield addresses that no other socket gets, also without a listener.

    A bound socket reserves its port; a server that requests it by number with address reuse can
    still listen.
    """
    with contextlib.ExitStack() as held:
        addresses = []
        for _ in range(count):
            holder = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            addresses.append(holder.getsockname())
        yield addresses


@dataclass(slots=True, frozen=True)
class Vendor:
    """One driver under contract."""

    scheme: str
    personality: str
    front_end: int
    ports: tuple[str, ...]
    """At least eight ports, the first half usable as sources."""
    activate: bytes
    """Wire prefix of the command that makes light; empty for an encrypted protocol."""

    @property
    def reciprocal(self) -> bool:
        """Whether one path carries light both ways."""
        return self.personality.endswith("CC")

    @property
    def logs_in(self) -> bool:
        return self.scheme != "polatis+scpi"

    @property
    def measures_light(self) -> bool:
        return self.scheme != "polatis+scpi"

    @property
    def two_step(self) -> bool:
        return self.scheme == "calient+tl1"

    def __str__(self) -> str:
        return f"{self.scheme}-{self.personality}-{self.front_end}"


_INPUTS = tuple(str(n) for n in range(1, 9))

VENDORS = (
    Vendor(
        "calient+tl1",
        "calient-s320",
        0,
        ("1.1.1", "1.1.2", "1.1.3", "1.1.4", "2.1.1", "2.1.2", "2.1.3", "2.1.4"),
        b"ACT-CRS",
    ),
    Vendor(
        "calient+tl1",
        "calient-s320",
        1,
        ("1.1.1", "1.1.2", "1.1.3", "1.1.4", "2.1.1", "2.1.2", "2.1.3", "2.1.4"),
        b"ACT-CRS",
    ),
    Vendor("polatis+tl1", "polatis-24x24", 0, _INPUTS, b"ENT-PATCH"),
    Vendor("polatis+tl1", "polatis-48xCC", 0, _INPUTS, b"ENT-PATCH"),
    Vendor("polatis+scpi", "polatis-24x24", 1, _INPUTS, b"CONN:ADD"),
    Vendor("polatis+scpi", "polatis-48xCC", 1, _INPUTS, b"CONN:ADD"),
    Vendor("polatis+netconf", "polatis-24x24", 2, _INPUTS, b""),
    Vendor("polatis+netconf", "polatis-48xCC", 2, _INPUTS, b""),
    Vendor(
        "glimmerglass+tl1",
        "glimmerglass-48",
        0,
        tuple(str(10000 + n) for n in range(1, 9)),
        b"ent-crs-fiber",
    ),
)


@dataclass(slots=True)
class RecordingDataPlane:
    """Records the light, and reports chosen links as missing."""

    missing: set[str] = field(default_factory=set)
    paths: Mapping[str, str] = field(default_factory=dict)

    def open(self) -> None:
        pass

    def sync(self, paths: Mapping[str, str], carrier: Collection[str]) -> frozenset[str]:
        self.paths = dict(paths)
        return frozenset(self.missing)

    def close(self) -> None:
        self.paths = {}


@dataclass(slots=True)
class Rig:
    """A running emulator and how to reach it."""

    vendor: Vendor
    emulator: Emulator
    dataplane: RecordingDataPlane
    state_dir: Path
    settle_s: float | None
    """How long mirrors may take to settle; None for what the driver says."""

    @property
    def ports(self) -> tuple[str, ...]:
        return self.vendor.ports

    @property
    def address(self) -> tuple[str, int]:
        return self.emulator.addresses[self.vendor.front_end]

    def url(self, address: tuple[str, int] | None = None) -> str:
        host, port = address or self.address
        return f"{self.vendor.scheme}://admin@{host}:{port}"

    def driver(self, address: tuple[str, int] | None = None) -> OcsDriver:
        """Return a driver, at the switch's own address or another."""
        url, state = self.url(address), self.state_dir
        driver = ocs_driver.open(url, password=CREDENTIAL, state_dir=state)
        if isinstance(driver, MatrixDriver) and self.settle_s is not None:
            driver.profile = dataclasses.replace(driver.profile, settle_s=self.settle_s)
        return driver

    async def heard(self) -> None:
        """Wait until the emulator has applied all its tricks."""
        await until(lambda: not self.emulator.switch.faults.rules, "a trick to be applied")

    def foreign(self, a: str, b: str) -> None:
        """Make a circuit as another client."""
        model, partner = self.emulator.model, self.emulator.personality.partner
        beside = {fiber: output for output, fiber in partner.items()}
        pairs = [(a, beside[b]), (b, beside[a])] if beside else [(a, b)]
        for source, sink in pairs:
            name = f"{source}-{sink}"
            model.enter(name, source, sink, duplex=not beside, group=FOREIGN)
            model.activate(name, self.emulator.switch.now())
        self.emulator.switch.poke()


@contextlib.asynccontextmanager
async def rig(vendor: Vendor, *, never_settles: bool = False) -> AsyncIterator[Rig]:
    """Run a switch; mirrors that never settle are waited for by the driver as well."""
    personality = load_personality(vendor.personality)
    settle_s = None
    if never_settles:
        personality = personality.with_timing(mirror_s=FOREVER_S, bulk_s=FOREVER_S)
        settle_s = FOREVER_S
    dataplane = RecordingDataPlane()
    with reserved(len(personality.front_ends)) as listen, tempfile.TemporaryDirectory() as folder:
        emulator = Emulator(personality, listen, dataplane=dataplane, password=CREDENTIAL)
        async with emulator:
            yield Rig(vendor, emulator, dataplane, Path(folder), settle_s)


@dataclass(slots=True)
class Readings:
    """Counts how often a driver has read all circuits of its switch."""

    done: int = 0

    @classmethod
    def of(cls, driver: OcsDriver) -> Readings:
        assert isinstance(driver, ConvergingDriver)
        count, read = cls(), driver._read_map

        async def counted() -> CircuitMap:
            found = await read()
            count.done += 1
            return found

        driver._read_map = counted  # type: ignore[method-assign]
        return count

    async def settling(self) -> None:
        """Wait until the driver has read the result of a change, and so waits for its light."""
        # Once before the change, once after it, and once more because not all was lit.
        await until(lambda: self.done >= 3, "the circuits to be read again")


class CuttingProxy:
    """Cuts the connection once, at the first command that contains ``pattern``.

    With ``after_effect`` the switch gets the command and only its response is lost.
    """

    def __init__(self, target: tuple[str, int], pattern: bytes, *, after_effect: bool) -> None:
        self._target = target
        self._pattern = pattern
        self._after_effect = after_effect
        self.cut = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[tuple[str, int]]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()[:2]
        for task in list(self._tasks):
            task.cancel()
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        self._writers += [writer, far_writer]
        armed = asyncio.Event()

        async def forth() -> None:
            while data := await reader.read(65536):
                if self._pattern in data and not self.cut.is_set():
                    self.cut.set()
                    armed.set()
                    if not self._after_effect:
                        break
                far_writer.write(data)
            if not (armed.is_set() and self._after_effect):
                end()

        async def back() -> None:
            while data := await far_reader.read(65536):
                if armed.is_set():
                    break
                writer.write(data)
            end()

        def end() -> None:
            writer.close()
            far_writer.close()

        for part in (forth(), back()):
            task = asyncio.create_task(part)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
