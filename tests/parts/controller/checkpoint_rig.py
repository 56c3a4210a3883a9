"""A keeper over fake servers and a store in memory; time passes only when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Annotated

from pydantic import TypeAdapter

from agentlink.checkpoints import HoldingKind
from agentlink.ranks import RankCheckpoint
from agentlink.values import Where
from checkpoints.ledger import Key
from checkpoints.values import Scheme
from controller.base.errors import ServiceError
from controller.base.tasks import Tasks
from controller.checkpoints.keeper import CheckpointKeeper
from controller.checkpoints.removal import Removal
from controller.devices.aggregators import AttachPoint
from controller.devices.engine import OfferedVolume
from controller.state.kept.checkpoints import CHECKPOINTS, CheckpointRecord
from controller.state.kept.kinds import row_of
from controller.state.offers import ServerOffer
from controller.state.records import FLAT, CheckpointSpec, JobRecord, JobSpec
from controller.state.state import Reachability, State
from controller.state.writes import (
    DropRecords,
    KeptAnswer,
    Loaded,
    PutRecords,
    Write,
)
from controller.store.kinds import TABLES
from controller.usage.interval import UsageInterval
from controller.usage.window import Kept, UsageQuery
from sitefile import CabledSite
from sitefile.model import (
    AggregatorCable,
    Emulation,
    EndpointCable,
    Fiber,
    Port,
    Server,
    SwitchCable,
)
from sitefile.recovery import RecoveryPolicy
from sitefile.volumes import Volume
from tests.parts.controller.checkpoints import FakeCheckpointEngine, Place, digest_of

SERVERS = 4
PER_SERVER = 2
EVER = 10_000.0
"""Seconds in which every repetition is due."""


def site_of(servers: int = SERVERS, per_server: int = PER_SERVER) -> CabledSite:
    """Two optical switches, one for the even endpoints of servers; two aggregators on each."""
    endpoints = [
        EndpointCable(
            name=f"gpu{n}",
            server=f"srv{n // per_server}",
            ip=f"10.0.0.{n + 1}",
            prefix_len=24,
            fibers=(Fiber(f"e{n}", f"02:00:00:00:00:{n:02x}", Port(f"ocs{n % 2}", str(n))),),
            emulated=True,
        )
        for n in range(servers * per_server)
    ]
    aggregators = [
        AggregatorCable(
            f"as{a}",
            a,
            fibers={p: Port(f"ocs{a % 2}", f"{100 * (a + 1) + p}") for p in range(16)},
            fixed={},
        )
        for a in range(4)
    ]
    return CabledSite(
        name="rig",
        servers=tuple(Server(f"srv{n}", f"srv{n}:1") for n in range(servers)),
        endpoints=tuple(endpoints),
        aggregators=tuple(aggregators),
        switches=(SwitchCable("ocs0", "x://0"), SwitchCable("ocs1", "x://1")),
        uplinks=(),
        homes={},
        subnet="10.0.0.0/24",
        emulation=Emulation(),
        recovery=RecoveryPolicy(lost_after_s=0.0),
        volumes={"ckpt": Volume("ckpt", read_only=False)},
    )


class MemoryStore:
    """Keeps rows of checkpoints as the real table has them."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, object]] = {}
        self.broken = False

    async def load(self) -> Loaded:
        raise AssertionError("the rig restores by itself")

    def records(self) -> tuple[CheckpointRecord, ...]:
        return tuple(TABLES[CHECKPOINTS.name].read(row) for row in self.rows.values())

    async def commit(self, *writes: Write) -> None:
        await asyncio.sleep(0)
        if self.broken:
            raise ServiceError("failed", "the disk is full", object="store")
        for write in writes:
            match write:
                case PutRecords(kind=kind, records=records) if kind == CHECKPOINTS:
                    rows = [TABLES[kind.name].row(record) for record in records]
                    self.rows |= {row["folder"]: row for row in rows}
                case DropRecords(keys=folders):
                    for folder in folders:
                        self.rows.pop(folder, None)
                case _:
                    pass

    async def look_up(self) -> None: ...

    async def answer(self, ident: str) -> KeptAnswer | None:
        return None

    async def measurement_result(self, ident: str) -> str | None:
        return None

    async def usage(self, window: UsageQuery, live: Sequence[UsageInterval]) -> Kept:
        raise AssertionError


class Rig:
    """Servers that outlive controllers, and one controller at a time."""

    def __init__(self, site: CabledSite | None = None) -> None:
        self.site = site or site_of()
        self.away: set[str] = set()
        self.now = 1e6
        self.kept = FakeCheckpointEngine(
            self.site, silent=lambda: self.away, beside=self._beside, running=self._runs
        )
        self.store = MemoryStore()
        self.epochs = count(1)
        self.specs: dict[str, tuple[JobRecord, dict[int, RankCheckpoint]]] = {}
        self.light = {
            cable.name: AttachPoint(f"as{n % 4}", n // 4)
            for n, cable in enumerate(self.site.endpoints)
        }
        self.jobs: dict[str, JobRecord] = {}
        self.state: State
        self.keeper: CheckpointKeeper
        self.removal: Removal
        self.tasks: Tasks

    def _beside(self, folder: str, rank: int) -> str:
        return next(j.endpoints[rank] for j in self.jobs.values() if j.folder == folder)

    def _runs(self, folder: str) -> bool:
        return any(j.folder == folder and j.holding for j in self.jobs.values())

    # --- the controller -------------------------------------------------------------------

    async def up(self) -> None:
        """Start a controller from what the store has."""
        connections = Reachability(
            lambda: frozenset(a.name for a in self.site.aggregators),
            lambda: frozenset(s.name for s in self.site.switches),
            lambda: {s.name: s.name not in self.away for s in self.site.servers},
        )
        self.state = State(self.site, self.store, lambda: self.now, connections, lambda: ())
        self.state.checkpoints.restore(self.store.records())
        self.state.jobs.restore(self.jobs.values())
        self.state.light.attachments = dict(self.light)
        self.state.ready = True
        offered = {"ckpt": OfferedVolume("ckpt", False)}
        self.state.take_offers({s.name: ServerOffer(offered, {}, 0.0) for s in self.site.servers})
        self.tasks = Tasks()
        self.keeper = CheckpointKeeper(self.state, self.kept, self.tasks, lambda: self.now)
        inbox = self.keeper.inbox
        self.removal = Removal(self.state, self.kept, self.keeper.books, inbox, lambda: self.now)
        self.tasks.keep("holdings", inbox.run)
        await self.quiet()

    async def down(self) -> None:
        await self.state.journal.flush()
        await self.crash()

    async def crash(self) -> None:
        await self.tasks.stop()

    async def quiet(self) -> None:
        """Let everything happen that needs no time."""
        for _ in range(40):
            await asyncio.sleep(0)

    async def settle(self, rounds: int = 4) -> None:
        """Let the keeper look until nothing changes; every repetition is due in between."""
        for _ in range(rounds):
            await self.quiet()
            self.now += EVER
            await self.keeper.check()
            await self.quiet()

    # --- jobs -----------------------------------------------------------------------------

    def submit(
        self,
        name: str,
        endpoints: Sequence[str],
        scheme: Scheme = Scheme.PARTNER,
        *,
        folder: str = "",
        where: Where = Where.MEMORY,
        **fields: object,
    ) -> JobRecord:
        kept = {"size_bytes": 1, "scheme": scheme, "where": where, "set_size": 2, **fields}
        spec: CheckpointSpec = TypeAdapter(Annotated[CheckpointSpec, FLAT]).validate_python(kept)
        job = JobRecord(
            name=name,
            request=JobSpec(name=name, count=len(endpoints), checkpoint=spec),
            image="i",
            submitted_at=self.now,
            folder=folder or f"{name}.00000001",
        )
        self.state.checkpoints.put(CheckpointRecord(folder=job.folder, job=name, key=bytes(32)))
        self.state.journal.owe(row_of(self.state.checkpoints[job.folder]))
        self._put(job)
        return job

    def _put(self, job: JobRecord) -> None:
        self.jobs[job.name] = job
        self.state.jobs.put(job)

    async def start(self, name: str, endpoints: Sequence[str]) -> Key | None:
        """Start a job's ranks; return what they resume from."""
        job = replace(
            self.jobs[name], endpoints=tuple(endpoints), epoch=next(self.epochs), state="starting"
        )
        self._put(job)
        for endpoint in endpoints:  # as an agent: a run begins with nothing shown
            self.kept.shown.pop((job.folder, endpoint), None)
        given = await self.keeper.ready(name)
        self._put(replace(job, state="running"))
        assert sorted(given) == list(range(len(endpoints)))
        (resumed,) = {one.resumed for one in given.values()}
        if resumed is not None:
            for rank, endpoint in enumerate(endpoints):
                shown = self.kept.shown[job.folder, endpoint]
                digest = digest_of(job.folder, resumed, rank)
                assert (resumed, rank, digest) in shown, "a rank lacks its part"
        return resumed

    def write(self, name: str, step: int, ranks: Sequence[int] | None = None) -> Key:
        job = self.jobs[name]
        key = Key(step, job.epoch)
        for rank, endpoint in enumerate(job.endpoints):
            server = self.state.cables[endpoint].server
            if (ranks is None or rank in ranks) and server not in self.away:
                self.kept.write(job.folder, key, rank, endpoint)
        return key

    def end(self, name: str) -> None:
        self._put(replace(self.jobs[name], state="completed", finished_at=self.now))

    async def back(self, server: str) -> None:
        self.away.discard(server)
        self.kept.back(server)
        await self.quiet()

    def places(self, folder: str, kind: HoldingKind) -> Iterator[Place]:
        return (p for p in self.kept.held if p.folder == folder and p.kind is kind)

    def events(self, reason: str) -> list[str]:
        return [e.message for e in self.state.events.since(0, 10_000) if e.reason == reason]
