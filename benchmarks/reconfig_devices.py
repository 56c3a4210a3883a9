"""Simulates the devices of the reconfiguration benchmarks: drivers, aggregators and agents.

They execute commands immediately, except for light: mirrors take time, which is recorded, so that
the rest of the wall time is the control plane's own. They are strict where it matters: a circuit
on a busy port is refused, and a probe gets a response only along the light.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import replace

from agentlink.ranks import RankSpec
from agentlink.values import RegistryLogin, Scope
from controller.devices.aggregators import AggregatorEvent, AttachPoint
from controller.devices.counters import PortBlock, PortCounters
from controller.devices.engine import (
    HeldImage,
    LogLine,
    OfferedVolume,
    PullProgress,
    RankSample,
    RankState,
    RankStatus,
    Recording,
    RecordingLimits,
    ScopeState,
    ServerImage,
)
from controller.devices.openflow.rules.program import FlowProgram, diff
from controller.devices.openflow.session import messages
from ocs_driver.base import (
    GROUP,
    Action,
    Alarm,
    ApplyResult,
    BusyPort,
    Capabilities,
    Circuit,
    CircuitMap,
    CircuitRequest,
    CircuitState,
    Mode,
    OcsDriver,
    OcsEvent,
    Outcome,
    PairResult,
    PortInfo,
    PortPower,
)
from ocs_driver.diff import diff as diff_circuits
from sitefile.model import CabledSite, Port

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


class SimOcs(OcsDriver):
    """One optical switch."""

    def __init__(self, clock: Clock) -> None:
        self.circuits: dict[str, Circuit] = {}
        """Circuits by either end."""
        self._clock = clock

    async def connect(self) -> None:
        """Do nothing: there is no login."""

    async def close(self) -> None:
        """Do nothing: there is no login."""

    async def capabilities(self) -> Capabilities:
        """Return the capabilities of a MEMS switch."""
        return Capabilities(
            "Sim", "S", "1", "0", True, True, False, BusyPort.REJECT, MIRROR_S, BULK_S
        )

    async def inventory(self) -> tuple[PortInfo, ...]:
        """Return nothing; the benchmarks do not use it."""
        return ()

    async def read(self) -> CircuitMap:
        """Return the map."""
        return CircuitMap(tuple(dict.fromkeys(self.circuits.values())), time.time())

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
                self.circuits.pop(end, None)
            results.append(PairResult(Action.DELETE, request.a, request.b, True, Outcome.DONE))
        await self._clock.work(min(MIRROR_S * len(make), BULK_S))
        results += [self._make(request) for request in make]
        return ApplyResult(tuple(results), await self.read())

    def _make(self, request: CircuitRequest) -> PairResult:
        asked = (Action.MAKE, request.a, request.b, True)
        if request.a in self.circuits or request.b in self.circuits:
            return PairResult(*asked, Outcome.FAILED, "SROF", "the port is busy")
        made = Circuit(request.a, request.b, True, CircuitState.TUNED, request.name, "lightloom")
        self.circuits[request.a] = self.circuits[request.b] = made
        return PairResult(*asked, Outcome.DONE)

    async def check(
        self,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        mode: Mode = Mode.SAFE,
    ) -> None:
        """Compare with the map."""
        diff_circuits(await self.read(), delete, make, mode=mode, group=GROUP)

    async def power(self, ports: Sequence[str]) -> tuple[PortPower, ...]:
        """Return constant good power values."""
        return tuple(PortPower(port, -3.0, -4.0) for port in ports)

    async def alarms(self) -> tuple[Alarm, ...]:
        """Return none."""
        return ()

    async def subscribe(self) -> AsyncIterator[OcsEvent]:
        """Yield nothing."""
        nothing: tuple[OcsEvent, ...] = ()
        for each in nothing:
            yield each


class SimAggregators:
    """All aggregators: tables that take encoded messages, and probes along the light."""

    def __init__(
        self,
        site: CabledSite,
        switches: Mapping[str, SimOcs],
        post: Callable[[AggregatorEvent], None],
    ) -> None:
        self.post = post
        self.programs: dict[str, FlowProgram] = {}
        self.flow_mods = 0
        self._site = site
        self._switches = switches
        self._at = {e.ip: e for e in site.endpoints}
        self._points = {
            far: AttachPoint(a.name, port)
            for a in site.aggregators
            for port, far in a.fibers.items()
        }

    def connected(self) -> frozenset[str]:
        """Return all."""
        return frozenset(a.name for a in self._site.aggregators)

    def carrier(self, as_name: str) -> Mapping[int, bool]:
        """Return that every port is up."""
        return {}

    def lacking(self, programs: Mapping[str, FlowProgram]) -> frozenset[str]:
        """Return the aggregators whose tables differ."""
        return frozenset(n for n, p in programs.items() if self.programs.get(n) is not p)

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
        circuit = self._switches[fiber.device].circuits.get(fiber.port)
        await asyncio.sleep(0)
        if circuit is None:
            return None
        far = circuit.b if circuit.a == fiber.port else circuit.a
        there = self._points.get(Port(fiber.device, far))
        return 0.001 if there == AttachPoint(as_name, port) else None

    async def audit(self, as_name: str) -> list[str]:
        """Return no differences."""
        return []

    async def port_counters(self, as_name: str) -> PortBlock:
        """Return constant counters."""
        now, cable = time.monotonic(), self._site.aggregator(as_name)
        return PortBlock.made({p: PortCounters(0, 0, 0, 0, now) for p in cable.fibers})


class SimEngine:
    """Containers that execute commands immediately."""

    def __init__(self, site: CabledSite) -> None:
        self._servers = [server.name for server in site.servers]
        self.statuses: dict[tuple[str, int], RankStatus] = {}

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

    async def stop(self, job: str, grace_s: float) -> list[RankStatus]:
        """Stop a job."""
        ended = [s for k, s in self.statuses.items() if k[0] == job]
        self.statuses = {k: s for k, s in self.statuses.items() if k[0] != job}
        return ended

    async def freeze(self, job: str, settle_s: float = 0.0) -> bool | None:
        """Freeze a job; simulated ranks send nothing."""
        self._set(job, RankState.PAUSED)
        return True

    async def thaw(self, job: str) -> None:
        """Thaw a job."""
        self._set(job, RankState.RUNNING)

    async def freeze_scope(
        self, scope: str, servers: Collection[str], settle_s: float = 0.0
    ) -> bool | None:
        """Freeze nothing: every job is the simulation's own."""
        return True

    async def thaw_scope(self, scope: str, servers: Collection[str]) -> None:
        """Thaw nothing."""

    async def scopes(self, timeout_s: float) -> Mapping[str, Mapping[str, ScopeState]]:
        """Return that no server has a scope."""
        return {}

    def _set(self, job: str, state: RankState) -> None:
        rank = 0
        while (job, rank) in self.statuses:
            self.statuses[job, rank] = replace(self.statuses[job, rank], state=state)
            rank += 1

    async def observe(self) -> list[RankStatus]:
        """Return all."""
        return list(self.statuses.values())

    async def logs(
        self,
        job: str,
        rank: int | None,
        tail: int | None,
        follow: bool,
        placed: Mapping[int, str] | None = None,
        *,
        since: float | None = None,
        search: str = "",
        epoch: int | None = None,
    ) -> AsyncIterator[LogLine]:
        """Yield nothing."""
        nothing: tuple[LogLine, ...] = ()
        for each in nothing:
            yield each

    async def telemetry(self) -> AsyncIterator[RankSample]:
        """Yield nothing."""
        nothing: tuple[RankSample, ...] = ()
        for each in nothing:
            yield each

    def reachable(self) -> Mapping[str, bool]:
        """Return that every agent responds."""
        return dict.fromkeys(self._servers, True)

    def unfit(self) -> Mapping[str, str]:
        """Return that every endpoint is fit."""
        return {}

    def unready(self) -> Mapping[str, str]:
        """Return that every driver works."""
        return {}

    def carriers(self) -> Mapping[str, bool]:
        """Return nothing: no NIC is known."""
        return {}

    def placed(self, job: str, servers: Collection[str]) -> None:
        """Do nothing: the simulation needs no hint."""

    def command(self, term: int) -> None:
        """Accept any term."""

    async def find_image(
        self, image: str, servers: Collection[str], *, refresh: bool, timeout_s: float
    ) -> list[ServerImage]:
        """Return that every server has every image."""
        return [ServerImage(server, True, f"sha256:{0:064x}") for server in sorted(servers)]

    async def registry_digest(
        self, image: str, servers: Collection[str], login: RegistryLogin | None, timeout_s: float
    ) -> str:
        """Return a digest."""
        return f"sha256:{0:064x}"

    async def images(self, timeout_s: float) -> list[HeldImage]:
        """Return no list: the simulation needs none."""
        return []

    async def pull_image(
        self, server: str, image: str, login: RegistryLogin | None, *, refresh: bool = False
    ) -> AsyncGenerator[PullProgress]:
        """Return at once: the image is there."""
        yield PullProgress(image=ServerImage(server, True, f"sha256:{0:064x}"))

    async def volumes(self, timeout_s: float) -> Mapping[str, tuple[OfferedVolume, ...]]:
        """Return that no server offers a volume."""
        return {}

    async def remove_data(self, server: str, volume: str, scope: Scope, owner: str) -> bool:
        """Return that there was no data."""
        return False

    async def recordings(
        self, timeout_s: float, job: str = "", limits: RecordingLimits | None = None
    ) -> list[Recording]:
        """Return that nothing is recorded."""
        return []

    async def confirm_command(self, servers: Iterable[str], timeout_s: float) -> None:
        """Confirm every controller."""
