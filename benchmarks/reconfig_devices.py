"""Simulates the devices of the reconfiguration benchmarks: those of the tests, made fast.

They execute commands immediately, except for light: mirrors take time, which is recorded, so that
the rest of the wall time is the control plane's own. They are strict where it matters: a circuit
on a busy port is refused, and a probe gets a response only along the light. What differs from
``tests.parts.controller`` is what would cost a large site more than its controller does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace

from agentlink.ranks import RankSpec
from controller.devices.aggregators import AggregatorEvent, AttachPoint
from controller.devices.counters import PortBlock, PortCounters
from controller.devices.engine import HeldImage, RankSample, RankState, RankStatus
from controller.devices.openflow.rules.program import FlowProgram, diff
from controller.devices.openflow.session import messages
from controller.devices.profile import Profile
from ocs_driver.base import (
    Action,
    ApplyResult,
    Circuit,
    CircuitMap,
    CircuitOutcome,
    CircuitRequest,
    CircuitState,
    Mode,
    PairResult,
)
from sitefile.model import CabledSite, Port
from tests.parts.controller.aggregators import FakeAggregators
from tests.parts.controller.engine import FakeEngine
from tests.parts.controller.switch import FakeOcs

MIRROR_S, BULK_S = 0.025, 0.2
"""One mirror, and one bulk of any size (Calient S320 hardware guide)."""


class Clock:
    """Records when devices are physically busy."""

    def __init__(self) -> None:
        self._busy: list[tuple[float, float]] = []

    async def work(self, seconds: float) -> None:
        """Stay busy for ``seconds``."""
        if seconds:
            now = time.monotonic()
            self._busy.append((now, now + seconds))
            await asyncio.sleep(seconds)

    def busy_s(self, since: float) -> float:
        """Return for how long at least one device was busy."""
        total, end = 0.0, since
        for a, b in sorted(self._busy):
            total += max(0.0, b - max(a, end))
            end = max(end, b)
        return total


class SimOcs(FakeOcs):
    """One optical switch, whose circuits are found by port."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.at: dict[str, Circuit] = {}
        """Circuits by either end."""
        self._clock = clock

    async def read(self) -> CircuitMap:
        """Return the map."""
        return CircuitMap(tuple(dict.fromkeys(self.at.values())), time.time())

    async def apply(
        self,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        mode: Mode = Mode.SAFE,
        deadline_s: float = 10.0,
    ) -> ApplyResult:
        """Delete and make in one bulk of mirrors."""
        results = []
        for request in delete:
            for end in (request.a, request.b):
                self.at.pop(end, None)
            results.append(
                PairResult(Action.DELETE, request.a, request.b, True, CircuitOutcome.DONE)
            )
        await self._clock.work(min(MIRROR_S * len(make), BULK_S))
        results += [self.make(request) for request in make]
        return ApplyResult(tuple(results), await self.read())

    def make(self, request: CircuitRequest) -> PairResult:
        """Make one circuit; refuse a busy port."""
        asked = (Action.MAKE, request.a, request.b, True)
        if request.a in self.at or request.b in self.at:
            return PairResult(*asked, CircuitOutcome.FAILED, "SROF", "the port is busy")
        made = Circuit(request.a, request.b, True, CircuitState.TUNED, request.name, "lightloom")
        self.at[request.a] = self.at[request.b] = made
        return PairResult(*asked, CircuitOutcome.DONE)


class SimAggregators(FakeAggregators):
    """All aggregators: tables that take encoded messages, and probes along the light."""

    def __init__(
        self,
        site: CabledSite,
        switches: Mapping[str, SimOcs],
        post: Callable[[AggregatorEvent], None],
    ) -> None:
        super().__init__(site, switches, post)
        self.flow_mods = 0
        self._ocs = switches
        self._at = {e.ip: e for e in site.endpoints}
        self._points = {
            far: AttachPoint(a.name, port)
            for a in site.aggregators
            for port, far in a.fibers.items()
        }

    def carrier(self, as_name: str) -> Mapping[int, bool]:
        """Return that every port is up."""
        return {}

    async def install(self, programs: Mapping[str, FlowProgram], *, deadline_s: float) -> None:
        """Diff and encode the program, and replace the table."""
        for name, program in programs.items():
            steps = diff(self.programs.get(name, FlowProgram(name, 0)), program)
            for batch in messages.batches(steps):
                self.flow_mods += len(batch)
                batch.stamped(range(len(batch)))
                await asyncio.sleep(0)
            self.programs[name] = program

    async def probe(
        self, as_name: str, port: int, ip: str, mac: str, *, deadline_s: float
    ) -> float | None:
        """Return a time when the light leads there."""
        fiber = self._at[ip].fiber
        circuit = self._ocs[fiber.device].at.get(fiber.port)
        await asyncio.sleep(0)
        if circuit is None:
            return None
        far = circuit.b if circuit.a == fiber.port else circuit.a
        there = self._points.get(Port(fiber.device, far))
        return 0.001 if there == AttachPoint(as_name, port) else None

    async def profile(self, as_name: str) -> Profile:
        """Return one that lacks nothing."""
        return Profile(hardware="memory", metadata_bits=64)

    async def port_counters(self, as_name: str) -> PortBlock:
        """Return constant counters."""
        now, cable = time.monotonic(), self._site.aggregator(as_name)
        return PortBlock.made({p: PortCounters(0, 0, 0, 0, now) for p in cable.fibers})


class SimEngine(FakeEngine):
    """Containers that execute commands immediately, found by job and rank."""

    async def start(self, ranks: Sequence[RankSpec], deadline_s: float) -> list[RankStatus]:
        """Start ranks."""
        for s in ranks:
            self.statuses[s.job, s.key.rank] = RankStatus(
                s.job,
                s.key.rank,
                s.key.epoch,
                s.endpoint,
                s.server,
                RankState.RUNNING,
                container_id="c",
            )
        return [self.statuses[s.job, s.key.rank] for s in ranks]

    async def freeze(self, job: str, settle_s: float = 0.0) -> bool | None:
        """Freeze a job; simulated ranks send nothing."""
        self.set_all(job, RankState.PAUSED)
        return True

    def set_all(self, job: str, state: RankState) -> None:
        """Set the state of all ranks of a job."""
        rank = 0
        while (job, rank) in self.statuses:
            self.statuses[job, rank] = replace(self.statuses[job, rank], state=state)
            rank += 1

    async def telemetry(self) -> AsyncIterator[RankSample]:
        """Yield nothing."""
        return
        yield

    async def images(self, timeout_s: float) -> list[HeldImage]:
        """Return no list: the simulation needs none."""
        return []
