"""An execution engine in memory: its containers are entries of a dictionary."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace

from agentlink.ranks import RankSpec
from agentlink.values import RegistryLogin, Scope, ScopeState, Typed, WindowSize
from base import clock
from controller.devices.agents.messages import recordings_of
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
    RankState,
    RankStatus,
    Recording,
    RecordingLimits,
    ServerImage,
)
from protos import agent_pb2 as pb
from sitefile import CabledSite
from tests.parts.controller.checkpoints import FakeCheckpointEngine

IMAGE_ID = f"sha256:{'a' * 64}"


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
    driverless: dict[str, str] = field(default_factory=dict)
    """Endpoints whose driver does not work, with the reason."""
    nics: dict[str, bool] = field(default_factory=dict)
    """What agents say of the carriers of ranks' NICs."""
    hung: set[str] = field(default_factory=set)
    """Endpoints whose ranks do not end."""
    hanging: list[RankStatus] = field(default_factory=list)
    """Ranks whose stop was not confirmed: on a lost server, or hung."""
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
    printed: dict[tuple[str, int], list[tuple[float, str]]] = field(default_factory=dict)
    """What a rank has written and when, in place of ``output``."""
    recorded: list[Recording] = field(default_factory=list)
    """What the servers say about ranks' communication."""
    answers: dict[str, pb.RecordingsReply] = field(default_factory=dict)
    """The same as agents write it, by server."""
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
                if spec.checkpoint and (spec.checkpoint.folder, spec.key.rank) == (folder, rank):
                    return spec.endpoint
        raise AssertionError(f"no rank {rank} of {folder} was ever started")

    def _runs(self, folder: str) -> bool:
        return any(
            (spec.job, spec.key.rank) in self.statuses and spec.checkpoint.folder == folder
            for specs in self.specs.values()
            for spec in specs
            if spec.checkpoint
        )

    def holds(self, endpoint: str) -> bool:
        live = (RankState.RUNNING, RankState.PAUSED)
        found = (*self.statuses.values(), *self.hanging)
        return any(s.endpoint == endpoint and s.state in live for s in found)

    async def start(self, ranks: Sequence[RankSpec], deadline_s: float) -> list[RankStatus]:
        self._record("start", ranks[0].job)
        started = []
        if taken := [s for s in self.hanging if s.endpoint in {spec.endpoint for spec in ranks}]:
            text = f"used by job {taken[0].job}"
            raise EngineError([EngineFault("conflict", f"endpoint/{taken[0].endpoint}", text)])
        for spec in ranks:
            if spec.server in self.lost:
                continue
            status = RankStatus(
                spec.job,
                spec.key.rank,
                spec.key.epoch,
                spec.endpoint,
                spec.server,
                RankState.RUNNING,
                started_at=clock.time(),
                container_id=f"c-{spec.job}-{spec.key.rank}",
            )
            self.statuses[spec.job, spec.key.rank] = status
            self.written.add((spec.job, spec.key.rank, spec.server))
            started.append(status)
        self.specs[ranks[0].job] = list(ranks)
        if gone := self.lost & {spec.server for spec in ranks}:
            raise EngineError([EngineFault("unavailable", f"server/{min(gone)}", "away")])
        return started

    async def stop(
        self,
        job: str,
        grace_s: float,
        servers: Collection[str] | None = None,
        *,
        until: int | None = None,
    ) -> list[RankStatus]:
        self.graces[job] = grace_s
        self._record("stop", job)
        if servers is None:
            for rank, code in self.ends.get(job, {}).items():
                self.exit(job, rank, code)
        meant = [
            s
            for s in (*self.statuses.values(), *self.hanging)
            if s.job == job
            and (servers is None or s.server in servers)
            and (until is None or s.epoch <= until)
        ]
        gone = self.lost & (set(servers or ()) | {s.server for s in meant})
        stay = [s for s in meant if s.server in self.lost or s.endpoint in self.hung]
        ended = [s for s in meant if s not in stay]
        self.statuses = {k: s for k, s in self.statuses.items() if s not in meant}
        self.hanging = [s for s in self.hanging if s not in meant] + stay
        if gone:
            raise EngineError([EngineFault("unavailable", f"server/{min(gone)}", "away")])
        if stay:
            raise EngineError([EngineFault("timeout", f"rank/{stay[0].rank}", "does not end")])
        return ended

    async def freeze(self, job: str, settle_s: float = 0.0) -> bool | None:
        self._record("freeze", job)
        self.set_all(job, RankState.PAUSED)
        return None

    async def thaw(self, job: str) -> None:
        self._record("thaw", job)
        self.set_all(job, RankState.RUNNING)

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
        found = (*self.statuses.values(), *self.hanging)
        return [s for s in found if s.server not in self.lost]

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
                if (timed := self.printed.get((job, number))) is not None:
                    for time, line in timed:
                        if (since is None or time >= since) and search in line:
                            yield LogLine(number, time, "stdout", line)
                    continue
                for line in self.output.get((job, number), ("one", "two")):
                    yield LogLine(number, clock.time(), "stdout", line)

    async def exec(
        self, start: ExecStart, given: AsyncIterator[Typed | WindowSize]
    ) -> AsyncGenerator[ExecOutput | ExecEnd]:
        """Print the command."""
        self._record("exec", start.job)
        self.execs.append(start)
        status = self.statuses[start.job, start.rank]
        if status.state is not RankState.RUNNING or status.epoch != start.epoch:
            raise EngineError([EngineFault("conflict", f"server/{start.server}", "it is frozen")])
        yield ExecOutput("stdout", " ".join(start.command).encode())
        yield ExecEnd(0)

    async def telemetry(self) -> AsyncIterator[RankSample]:
        for s in list(self.statuses.values()):
            yield RankSample(
                *(s.job, s.rank, s.endpoint, clock.time(), "emulated"),
                {"utilisation": 0.5, "memory_bytes": 1024},
            )

    def reachable(self) -> Mapping[str, bool]:
        return {server.name: server.name not in self.lost for server in self.site.servers}

    def unfit(self) -> Mapping[str, str]:
        return self.sick

    def unready(self) -> Mapping[str, str]:
        return self.driverless

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

    async def recordings(
        self, timeout_s: float, job: str = "", limits: RecordingLimits | None = None
    ) -> list[Recording]:
        """Return what is recorded; answers of agents are read as they are read from the wire."""
        jobs = None if limits is None else limits.jobs
        read = [
            recording
            for server, reply in self.answers.items()
            for recording in recordings_of(server, reply, clock.time(), jobs)
        ]
        return [
            one
            for one in (*self.recorded, *read)
            if job in ("", one.job) and one.server not in self.lost
        ]

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

    def set_all(self, job: str, state: RankState) -> None:
        for key, status in self.statuses.items():
            if status.job == job and status.state is not RankState.EXITED:
                self.statuses[key] = replace(status, state=state)

    def _record(self, call: str, job: str, obj: str = "") -> None:
        self.calls.append((call, job))
        if call in self.broken:
            raise EngineError([EngineFault("failed", obj or f"job/{job}", f"{call} broke")])
