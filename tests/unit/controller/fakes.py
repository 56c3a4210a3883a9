"""In-memory fakes of the three kinds of device, with the behaviour that the controller relies on.

The optical switch holds a map of circuits; the aggregators hold flow programs and answer a
probe only where the light leads and the program admits it; the engine holds containers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from pathlib import Path

from base import clock
from controller.devices.aggregators import AggregatorError, AggregatorEvent, AttachPoint
from controller.devices.counters import PortBlock, PortCounters
from controller.devices.engine import (
    MISSING,
    EngineError,
    EngineFault,
    ExecEnd,
    ExecOutput,
    ExecStart,
    Fenced,
    HeldImage,
    LogLine,
    OfferedVolume,
    PullProgress,
    RankSample,
    RankSpec,
    RankState,
    RankStatus,
    Recording,
    RegistryLogin,
    Scope,
    ScopeState,
    ServerImage,
    Typed,
    WindowSize,
)
from controller.devices.observed import ObservedEngine
from controller.devices.openflow.flows import FlowKeeper
from controller.devices.openflow.rules.program import FlowProgram
from controller.devices.openflow.rules.rule import ToController
from controller.devices.optical import SwitchBank
from controller.service.service import Service
from controller.store.store import Store
from controller.telemetry.steps import FactsOf, Links
from controller.transaction.circuits import recognise
from measure.kinds import Kind
from measure.registry import KINDS
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
from ocs_driver.diff import diff
from ocs_driver.errors import OcsTimeout, OcsUnreachable
from scheduler.queue.model import Project
from sitefile import CabledSite, load_site
from testbed.simulated.loop import settled
from tests.unit.controller.checkpoint_fakes import FakeCheckpointEngine
from tests.unit.controller.disk import Disk

IMAGE_ID = f"sha256:{'a' * 64}"
MIRRORS_S = 0.025
"""How long mirrors move."""
PAPER = Path(__file__).parents[3] / "testbed" / "sites" / "paper.yaml"


class FakeOcs(OcsDriver):
    """One optical switch. ``dull`` pairs of ports carry no light, even with a circuit."""

    def __init__(self) -> None:
        self.circuits: list[Circuit] = []
        self.dull: set[tuple[str, str]] = set()
        self.refused: set[str] = set()
        self.away = False
        self.late = False
        """Carries out requests but does not answer them."""
        self.applied: list[tuple[tuple[CircuitRequest, ...], tuple[CircuitRequest, ...]]] = []

    def add(self, a: str, b: str, owner: str = "lightloom") -> None:
        self.circuits.append(Circuit(a, b, True, CircuitState.TUNED, "", owner))

    def lit(self) -> list[tuple[str, str]]:
        return [(c.a, c.b) for c in self.circuits if (c.a, c.b) not in self.dull]

    async def connect(self) -> None:
        self._check()

    async def close(self) -> None:
        pass

    async def capabilities(self) -> Capabilities:
        return Capabilities("Fake", "F1", "1", "0", True, True, False, BusyPort.REJECT, 0.025, 0.2)

    async def inventory(self) -> tuple[PortInfo, ...]:
        return ()

    async def read(self) -> CircuitMap:
        self._check()
        return CircuitMap(tuple(self.circuits), clock.time())

    async def apply(
        self,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        mode: Mode = Mode.SAFE,
        deadline_s: float = 10.0,
    ) -> ApplyResult:
        self._check()
        assert mode is Mode.SAFE
        self.applied.append((tuple(delete), tuple(make)))
        await asyncio.sleep(MIRRORS_S)
        results = []
        for request in delete:
            found = [c for c in self.circuits if c.matches(request)]
            self.circuits = [c for c in self.circuits if c not in found]
            outcome = Outcome.DONE if found else Outcome.UNCHANGED
            results.append(PairResult(Action.DELETE, request.a, request.b, True, outcome))
        results += [self._make(request) for request in make]
        if self.late:
            raise OcsTimeout("timeout", "fake", "no answer")
        return ApplyResult(tuple(results), CircuitMap(tuple(self.circuits), clock.time()))

    def _make(self, request: CircuitRequest) -> PairResult:
        asked = (Action.MAKE, request.a, request.b, True)
        if any(c.matches(request) for c in self.circuits):
            return PairResult(*asked, Outcome.UNCHANGED)
        if request.b in self.refused:
            return PairResult(*asked, Outcome.FAILED, "SROF", "the mirror does not move")
        busy = {p for c in self.circuits for p in (c.a, c.b)}
        assert not {request.a, request.b} & busy, "a make on a busy port"
        self.add(request.a, request.b)
        return PairResult(*asked, Outcome.DONE)

    async def check(
        self,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        mode: Mode = Mode.SAFE,
    ) -> None:
        diff(await self.read(), delete, make, mode=mode, group=GROUP)

    async def power(self, ports: Sequence[str]) -> tuple[PortPower, ...]:
        self._check()
        return tuple(PortPower(port, -3.0, -4.0) for port in ports)

    async def alarms(self) -> tuple[Alarm, ...]:
        return ()

    async def subscribe(self) -> AsyncIterator[OcsEvent]:
        return
        yield

    def _check(self) -> None:
        if self.away:
            raise OcsUnreachable("unreachable", "fake", "switched off")


class FakeAggregators:
    """All aggregators of a site, cabled to the fake optical switches and the fake engine."""

    def __init__(
        self,
        site: CabledSite,
        switches: Mapping[str, FakeOcs],
        post: Callable[[AggregatorEvent], None],
    ) -> None:
        self._site = site
        self._switches = switches
        self.post = post
        self.engine: FakeEngine | None = None
        self.away: set[str] = set()
        self.edited: dict[str, list[str]] = {}
        """Foreign changes of the tables, until the next install."""
        self.programs: dict[str, FlowProgram] = {}
        self.history: list[Mapping[str, FlowProgram]] = []
        self.counters: dict[AttachPoint, int] = {}
        self.sent: Callable[[AttachPoint], int] = lambda point: 0
        """Frames that a port has transmitted."""
        self.reads: Counter[str] = Counter()
        self.probes: list[AttachPoint] = []

    async def start(self) -> tuple[str, int]:
        raise AssertionError("nothing listens here")

    async def stop(self) -> None: ...

    def connected(self) -> frozenset[str]:
        return frozenset(a.name for a in self._site.aggregators) - self.away

    def carrier(self, as_name: str) -> Mapping[int, bool]:
        lit = set(self.light().values())
        cable = self._site.aggregator(as_name)
        return {port: AttachPoint(as_name, port) in lit for port in cable.fibers}

    def light(self) -> dict[str, AttachPoint]:
        """Return the port to which every endpoint's light leads."""
        found: dict[str, AttachPoint] = {}
        for name, ocs in self._switches.items():
            found.update(recognise(self._site, name, ocs.lit()).attachments)
        return found

    def lacking(self, programs: Mapping[str, FlowProgram]) -> frozenset[str]:
        held = self.programs
        wrong = self.away | self.edited.keys()
        return frozenset(n for n, p in programs.items() if held.get(n) is not p or n in wrong)

    async def install(self, programs: Mapping[str, FlowProgram], *, deadline_s: float) -> None:
        for name, program in programs.items():
            if name in self.away:
                raise AggregatorError("unavailable", name, "no session", "wait")
            self.programs[name] = program
            self.edited.pop(name, None)
        self.history.append(dict(self.programs))

    async def probe(
        self, as_name: str, port: int, ip: str, mac: str, *, deadline_s: float
    ) -> float | None:
        if as_name in self.away:
            raise AggregatorError("unavailable", as_name, "no session", "wait")
        point = AttachPoint(as_name, port)
        self.probes.append(point)
        endpoint = next(e for e in self._site.endpoints if e.ip == ip)
        assert self.engine is not None
        answers = (
            self.light().get(endpoint.name) == point
            and self.engine.holds(endpoint.name)
            and self._admits_probe(point, ip)
        )
        if not answers:
            await asyncio.sleep(deadline_s)
            return None
        return 0.001

    def _admits_probe(self, point: AttachPoint, ip: str) -> bool:
        return any(
            ToController() in rule.actions
            and ("in_port", point.port) in rule.match
            and ("arp_spa", ip) in rule.match
            for rule in self.programs[point.aggregator].rules
        )

    async def audit(self, as_name: str) -> list[str]:
        if as_name in self.away:
            raise AggregatorError("unavailable", as_name, "no session", "wait")
        return list(self.edited.get(as_name, ()))

    async def port_counters(self, as_name: str) -> PortBlock:
        if as_name in self.away:
            raise AggregatorError("unavailable", as_name, "no session", "wait")
        self.reads[as_name] += 1
        counters = {
            port: PortCounters(
                rx_bytes=(count := self.counters.get(AttachPoint(as_name, port), 0)),
                tx_bytes=2 * count,
                rx_packets=0,
                tx_packets=self.sent(AttachPoint(as_name, port)),
                duration_s=float(self.reads[as_name]),
            )
            for port in self._site.aggregator(as_name).fibers
        }
        return PortBlock.made(counters)


@dataclass
class FakeEngine:
    """Containers in a dictionary; records every call."""

    site: CabledSite
    statuses: dict[tuple[str, int], RankStatus] = field(default_factory=dict)
    specs: dict[str, list[RankSpec]] = field(default_factory=dict)
    execs: list[ExecStart] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    """Names of calls that fail."""
    lost: set[str] = field(default_factory=set)
    """Servers that do not answer."""
    sick: dict[str, str] = field(default_factory=dict)
    """Endpoints whose GPU is lost, with the reason."""
    nics: dict[str, bool] = field(default_factory=dict)
    """What agents say of the carriers of ranks' NICs."""
    graces: dict[str, float] = field(default_factory=dict)
    """By job: seconds that its ranks had at its last stop."""
    ends: dict[str, dict[int, int]] = field(default_factory=dict)
    """Exit code of each job's ranks when the job is stopped."""
    term: int = 0
    fenced: bool = False
    """The servers have seen a newer controller."""
    unlisted: set[str] = field(default_factory=set)
    """Images of registries that no server lists, and that no server has."""
    absent: set[str] = field(default_factory=set)
    """Images that servers lack, but may fetch. They have every other."""
    held: dict[str, dict[str, ServerImage]] = field(default_factory=dict)
    """What a server says about an image, by server and name."""
    asked: list[str] = field(default_factory=list)
    """Servers that were asked for an image, in order."""
    registry: dict[str, str] = field(default_factory=dict)
    """Digests in the registry, by name."""
    logins: list[RegistryLogin | None] = field(default_factory=list)
    pulls: list[tuple[str, str]] = field(default_factory=list)
    slow: asyncio.Event | None = None
    """A pull ends when this is set; None ends it at once."""
    written: set[tuple[str, int, str]] = field(default_factory=set)
    """Job, rank and server of every log that was ever begun."""
    offered: dict[str, tuple[OfferedVolume, ...]] = field(default_factory=dict)
    """The volumes of each server."""
    output: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    """What a rank has written, where it matters."""
    recorded: list[Recording] = field(default_factory=list)
    """What the servers say about ranks' communication."""
    confirmed: list[tuple[str, ...]] = field(default_factory=list)
    """Per call: the servers that were asked whether this controller still commands them."""

    scoped: dict[str, dict[str, ScopeState]] = field(default_factory=dict)
    """By server: the scopes that have processes there."""
    unscoped: dict[str, str] = field(default_factory=dict)
    """Servers whose agents freeze no scopes, with the code of the fault."""

    def __post_init__(self) -> None:
        self.kept = FakeCheckpointEngine(
            self.site, silent=lambda: self.lost, beside=self._beside, running=self._runs
        )
        """What servers hold of jobs' checkpoints."""
        kept = self.kept
        self.holdings, self.keep, self.close_step = kept.holdings, kept.keep, kept.close_step
        self.fetch, self.drop_steps = kept.fetch, kept.drop_steps
        self.verify_steps = kept.verify_steps
        self.forget_checkpoints = kept.forget_checkpoints

    def _beside(self, folder: str, rank: int) -> str:
        for specs in self.specs.values():
            for spec in specs:
                if spec.checkpoint and (spec.checkpoint.folder, spec.rank) == (folder, rank):
                    return spec.endpoint
        raise AssertionError(f"no rank {rank} of {folder} was ever started")

    def _runs(self, folder: str) -> bool:
        return any(
            (spec.job, spec.rank) in self.statuses and spec.checkpoint.folder == folder
            for specs in self.specs.values()
            for spec in specs
            if spec.checkpoint
        )

    def holds(self, endpoint: str) -> bool:
        live = (RankState.RUNNING, RankState.PAUSED)
        return any(s.endpoint == endpoint and s.state in live for s in self.statuses.values())

    async def start(self, ranks: Sequence[RankSpec], deadline_s: float) -> list[RankStatus]:
        self._record("start", ranks[0].job)
        started = []
        for spec in ranks:
            if spec.server in self.lost:
                continue
            status = RankStatus(
                spec.job,
                spec.rank,
                spec.epoch,
                spec.endpoint,
                spec.server,
                RankState.RUNNING,
                started_at=clock.time(),
                container_id=f"c-{spec.job}-{spec.rank}",
            )
            self.statuses[spec.job, spec.rank] = status
            self.written.add((spec.job, spec.rank, spec.server))
            started.append(status)
        self.specs[ranks[0].job] = list(ranks)
        if gone := self.lost & {spec.server for spec in ranks}:
            raise EngineError([EngineFault("unavailable", f"server/{min(gone)}", "away")])
        return started

    async def stop(
        self, job: str, grace_s: float, servers: Collection[str] | None = None
    ) -> list[RankStatus]:
        self.graces[job] = grace_s
        self._record("stop", job)
        if servers is not None:
            if gone := self.lost & set(servers):
                raise EngineError([EngineFault("unavailable", f"server/{min(gone)}", "away")])
            mine = [s for s in self.statuses.values() if s.job == job and s.server in servers]
            self.statuses = {k: s for k, s in self.statuses.items() if s not in mine}
            return mine
        for rank, code in self.ends.get(job, {}).items():
            self.exit(job, rank, code)
        ended = [s for s in self.statuses.values() if s.job == job]
        self.statuses = {k: s for k, s in self.statuses.items() if s.job != job}
        return ended

    async def freeze(self, job: str, settle_s: float = 0.0) -> bool | None:
        self._record("freeze", job)
        self._all(job, RankState.PAUSED)
        return None

    async def thaw(self, job: str) -> None:
        self._record("thaw", job)
        self._all(job, RankState.RUNNING)

    async def freeze_scope(
        self, scope: str, servers: Collection[str], settle_s: float = 0.0
    ) -> bool | None:
        self._record("freeze_scope", scope, f"scope/{scope}")
        self._switch(scope, servers, ScopeState.FROZEN)
        if not servers:
            raise EngineError([EngineFault("not_found", f"scope/{scope}", "on no server")])
        return None

    async def thaw_scope(self, scope: str, servers: Collection[str]) -> None:
        self._record("thaw_scope", scope, f"scope/{scope}")
        self._switch(scope, servers, ScopeState.RUNNING)

    async def scopes(self, timeout_s: float) -> Mapping[str, Mapping[str, ScopeState]]:
        return {
            server.name: dict(self.scoped.get(server.name, {}))
            for server in self.site.servers
            if server.name not in self.lost and self.unscoped.get(server.name) != "forbidden"
        }

    def _switch(self, scope: str, servers: Collection[str], state: ScopeState) -> None:
        faults = []
        known = {server.name for server in self.site.servers}
        for server in sorted(servers):
            code = self.unscoped.get(server, "")
            if server not in known:
                code = "not_found"
            elif server in self.lost:
                code = "unavailable"
            elif code == "not_found" and state is ScopeState.RUNNING:
                code = ""  # nothing is frozen there
            if code:
                faults.append(EngineFault(code, f"scope/{scope}", f"{server}: {code}"))
            elif scope in self.scoped.get(server, {}):
                self.scoped[server][scope] = state
        if faults:
            raise EngineError(faults)

    async def observe(self) -> list[RankStatus]:
        return [s for s in self.statuses.values() if s.server not in self.lost]

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
        """As agents do: a rank that ran on another server has no log here."""
        for number, server in sorted((placed or {}).items()):
            if rank in (None, number) and server in self.lost:
                yield LogLine(number, clock.time(), MISSING, f"{server} does not answer")
            elif rank in (None, number) and (job, number, server) in self.written:
                for line in self.output.get((job, number), ("one", "two")):
                    yield LogLine(number, clock.time(), "stdout", line)

    async def exec(
        self, start: ExecStart, given: AsyncIterator[Typed | WindowSize]
    ) -> AsyncGenerator[ExecOutput | ExecEnd]:
        """Print the command."""
        self._record("exec", start.job)
        self.execs.append(start)
        if self.statuses[start.job, start.rank].state is not RankState.RUNNING:
            raise EngineError([EngineFault("conflict", f"server/{start.server}", "it is frozen")])
        yield ExecOutput("stdout", " ".join(start.command).encode())
        yield ExecEnd(0)

    async def telemetry(self) -> AsyncIterator[RankSample]:
        for s in list(self.statuses.values()):
            yield RankSample(s.job, s.rank, s.endpoint, clock.time(), 0.5, 1024, "emulated")

    def reachable(self) -> Mapping[str, bool]:
        return {server.name: server.name not in self.lost for server in self.site.servers}

    def unfit(self) -> Mapping[str, str]:
        return self.sick

    def carriers(self) -> Mapping[str, bool]:
        silent = {c.name for c in self.site.endpoints if c.server in self.lost}
        return {e: up for e, up in self.nics.items() if e not in silent}

    def placed(self, job: str, servers: Collection[str]) -> None:
        pass

    def leave(self, job: str, servers: Collection[str]) -> None:
        pass

    def command(self, term: int) -> None:
        self.term = term

    async def find_image(
        self, image: str, servers: Collection[str], *, refresh: bool, timeout_s: float
    ) -> list[ServerImage]:
        found = []
        self.asked += servers
        for server in sorted(set(servers) - self.lost):
            refusal = "its registry is not listed" if image in self.unlisted else ""
            if image in self.held.get(server, {}):
                found.append(replace(self.held[server][image], server=server))
            elif image in self.absent or image in self.unlisted:
                found.append(ServerImage(server, False, refusal=refusal))
            else:
                found.append(ServerImage(server, True, IMAGE_ID, (image,)))
        return found

    async def registry_digest(
        self, image: str, servers: Collection[str], login: RegistryLogin | None, timeout_s: float
    ) -> str:
        self.logins.append(login)
        if image not in self.registry:
            raise EngineError([EngineFault("not_found", "server/srv0", f"{image} is unknown")])
        return self.registry[image]

    async def images(self, timeout_s: float) -> list[HeldImage]:
        return [
            HeldImage(server.name, IMAGE_ID, ("image:1",), 7, tuple(sorted(self.specs)), 1e9)
            for server in self.site.servers
            if server.name not in self.lost
        ]

    async def pull_image(
        self, server: str, image: str, login: RegistryLogin | None, *, refresh: bool = False
    ) -> AsyncGenerator[PullProgress]:
        self.logins.append(login)
        self.pulls.append((server, image))
        if self.slow is not None:
            yield PullProgress(1, 2, 1_200_000_000, 3_400_000_000)
            await self.slow.wait()
        if server in self.lost:
            raise EngineError([EngineFault("unavailable", f"server/{server}", "no answer")])
        yield PullProgress(image=ServerImage(server, True, IMAGE_ID, (image,), 7))

    async def volumes(self, timeout_s: float) -> Mapping[str, tuple[OfferedVolume, ...]]:
        return {
            server: self.offered.get(server, ())
            for server, answers in self.reachable().items()
            if answers
        }

    async def remove_data(self, server: str, volume: str, scope: Scope, owner: str) -> bool:
        self._record("remove_data", f"{server}/{volume}/{owner}")
        if server in self.lost:
            raise EngineError([EngineFault("unavailable", f"server/{server}", "no answer")])
        before = self.offered.get(server, ())
        self.offered[server] = tuple(
            replace(v, data=tuple(d for d in v.data if (d.scope, d.owner) != (scope, owner)))
            if v.name == volume
            else v
            for v in before
        )
        return self.offered[server] != before

    async def recordings(self, timeout_s: float, job: str = "") -> list[Recording]:
        return [r for r in self.recorded if job in ("", r.job) and r.server not in self.lost]

    async def confirm_command(self, servers: Iterable[str], timeout_s: float) -> None:
        self.confirmed.append(tuple(sorted(servers)))
        if self.fenced:
            why = "a newer controller commands this agent"
            raise Fenced([EngineFault("forbidden", "server/srv0", why)])

    def exit(self, job: str, rank: int, code: int) -> None:
        """End a rank's program."""
        key = (job, rank)
        self.statuses[key] = replace(
            self.statuses[key],
            state=RankState.EXITED,
            exit_code=code,
            finished_at=clock.time(),
        )

    def states(self, job: str) -> set[RankState]:
        return {s.state for s in self.statuses.values() if s.job == job}

    def _all(self, job: str, state: RankState) -> None:
        for key, status in self.statuses.items():
            if status.job == job and status.state is not RankState.EXITED:
                self.statuses[key] = replace(status, state=state)

    def _record(self, call: str, job: str, obj: str = "") -> None:
        self.calls.append((call, job))
        if call in self.broken:
            raise EngineError([EngineFault("failed", obj or f"job/{job}", f"{call} broke")])


class Rack:
    """A complete controller over the fakes ``switch``, ``aggregators`` and ``engine``."""

    aggregators_kind: type[FakeAggregators] = FakeAggregators

    def __init__(self, state_dir: Path, site: CabledSite | None = None) -> None:
        self.site = site or load_site(PAPER)
        self.state_dir = state_dir
        self.switch = FakeOcs()
        self.engine = FakeEngine(self.site)
        self.aggregators: FakeAggregators
        self.service: Service
        self.store: Store
        self.disk: Disk
        self.observed: ObservedEngine | None = None
        """Another engine, which owns the jobs of some endpoints."""

    async def up(
        self,
        *,
        take_command: bool = False,
        projects: Callable[[], Iterable[Project]] | None = None,
        kinds: Mapping[str, Kind] = KINDS,
        facts: FactsOf | None = None,
        links: Links | None = None,
    ) -> Service:
        """Start a controller on the fakes' present state; after ``down`` this is a restart."""
        self.store = Store(self.state_dir / "controller.sqlite")
        self.disk = Disk(self.store)

        def aggregators(post: Callable[[AggregatorEvent], None]) -> FlowKeeper:
            kept = self.aggregators.programs if hasattr(self, "aggregators") else {}
            self.aggregators = self.aggregators_kind(self.site, {"ocs0": self.switch}, post)
            self.aggregators.programs = kept  # flow tables outlive the controller
            self.aggregators.engine = self.engine
            self.flows = FlowKeeper(self.site, self.aggregators)
            return self.flows

        self.service = Service(
            self.site,
            self.store,
            switches=lambda on_change: SwitchBank({"ocs0": self.switch}, on_change),
            aggregators=aggregators,
            engine=self.engine,
            default_image="image:1",
            take_command=take_command,
            projects=projects,
            kinds=kinds,
            facts=facts,
            links=links,
            observed=self.observed,
        )
        await self.service.start()
        await self.until(self._whole)
        return self.service

    async def _whole(self) -> bool:
        return (await self.service.queries.health()).status == "ok"

    async def down(self) -> None:
        self.disk.release()
        await self.service.stop()
        await self.store.close()

    async def until(self, condition: Callable[[], object], limit_s: float = 60.0) -> None:
        """Wait until ``condition``, a function or a coroutine function, returns a true value."""
        async with asyncio.timeout(limit_s):
            while True:
                value = condition()
                if asyncio.iscoroutine(value):
                    value = await value
                if value:
                    return
                await settled()

    async def state(self, job: str, *states: str) -> None:
        """Wait until the job is in one of ``states``."""

        async def reached() -> bool:
            return (await self.service.queries.job(job)).state in states

        await self.until(reached)
