"""Parts of checkpoints between four agents: real namespaces, real TLS, real folders."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import pytest_asyncio
from crc32c import crc32c

from agentlink.checkpoints import (
    FetchProgress,
    Folder,
    GetFrom,
    GetLocal,
    GetPart,
    GetRebuilt,
    GetStored,
    Holding,
    HoldingKind,
    Keep,
    KeepCopy,
    KeepParity,
    KeepStored,
    Source,
)
from agentlink.values import Scope, VolumeMount, Where
from checkpoints.ledger import Key, Member
from checkpoints.manifest import FileSums, Manifest, Sum
from container_mgr.checkpoints.holder import DiskHolder
from container_mgr.checkpoints.values import PartPlace
from container_mgr.kernel import in_flight
from container_mgr.transfers import parts, wire
from container_mgr.transfers.mover import PartMover
from container_mgr.volumes.offers import Offer
from container_mgr.volumes.volumes import Volumes
from pki import Authority, Credentials, agent_name
from tests.integration.agent_parts import ip
from tests.integration.waiting import eventually

pytestmark = pytest.mark.root

FABRIC = "ll-parts"
FOLDER = Folder("red.0123abcd", bytes(range(32)), Where.DISK, 1 << 30)
KEY = Key(40, 2)
STORE = VolumeMount("ckpt", "/ckpt", scope=Scope.PROJECT, owner="vision")
COUNT = 4
LIMIT_S = 60.0
TAKES_PORT = """
import socket, sys, time
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    print("taken", flush=True)
    while True:
        one, _ = server.accept()
        one.sendall(bytes(64))
        one.close()
"""


_T = TypeVar("_T")


def namespace(rank: int) -> str:
    return f"ll-c-red-{rank}-2"


def address(rank: int) -> str:
    return f"10.78.0.{rank + 1}"


@contextmanager
def light() -> Iterator[None]:
    """Join the namespaces of four ranks by one switch."""
    ip("netns", "add", FABRIC)
    try:
        ip("-n", FABRIC, "link", "add", "br0", "type", "bridge")
        ip("-n", FABRIC, "link", "set", "br0", "up")
        for rank in range(COUNT):
            name, port = namespace(rank), f"p{rank}"
            ip("netns", "add", name)
            ip(
                "-n",
                FABRIC,
                "link",
                "add",
                port,
                "type",
                "veth",
                "peer",
                "name",
                "e0",
                "netns",
                name,
            )
            ip("-n", FABRIC, "link", "set", port, "master", "br0", "up")
            ip("-n", name, "address", "add", f"{address(rank)}/24", "dev", "e0")
            ip("-n", name, "link", "set", "e0", "up")
        yield
    finally:
        for name in (FABRIC, *map(namespace, range(COUNT))):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "del", name)


@contextmanager
def inside(rank: int, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a rank's namespace, as the rank's own would."""
    process = subprocess.Popen(
        ["ip", "netns", "exec", namespace(rank), *command], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@dataclass
class Agent:
    """The halves of one agent, and all that it told."""

    number: int
    held: DiskHolder
    mover: PartMover
    volumes: Volumes
    told: list[Holding] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        return f"gpu{self.number}"

    async def listen(self) -> None:
        async for news in self.held.news():
            self.told += news.holdings

    async def write(self, size: int, key: Key = KEY) -> Manifest:
        """Have this agent's rank's part."""
        return await asyncio.to_thread(self._write, size, key)

    def _write(self, size: int, key: Key) -> Manifest:
        blocks = {
            "model.bin": np.random.default_rng(self.number).bytes(size + 7919 * self.number),
            "deep/optimizer.bin": np.random.default_rng(self.number + 100).bytes(size // 3),
            "empty": b"",
        }
        sums = {path: Sum(len(one), crc32c(one)) for path, one in blocks.items()}
        found = Manifest(
            FOLDER.name, key.epoch, key.step, self.number, COUNT, "rename", FileSums(sums)
        )
        place = PartPlace(FOLDER.name, self.endpoint, HoldingKind.OWN, self.number, key)
        receiving = self.held.receive(place, found.bytes)
        try:
            out = parts.Files(receiving.root, found)
            for _, one in sorted(blocks.items()):
                out.write(one)
            assert out.finish() == ()
            receiving.keep(found)
        finally:
            receiving.give_up()
        part = self.held.find(place)
        assert part is not None
        (part.root.parents[2] / "live").mkdir(exist_ok=True)  # as if its rank had begun
        return found

    def source(self, found: Manifest, *, light: bool) -> Source:
        where = address(self.number) if light else f"127.0.0.1:{self.mover.port}"
        server = f"srv{self.number}"
        return Source(self.number, found.digest, found.bytes, self.endpoint, server, where)

    async def keep(self, *keeps: Keep, pace_bps: int = 0) -> None:
        assert await self.mover.keep(FOLDER.name, keeps, pace_bps) == []

    async def tells(self, good: Callable[[Holding], bool], *, since: int = 0) -> Holding:
        found = await until(lambda: [one for one in self.told[since:] if good(one)])
        return found[0]

    async def fetch(self, *gets: GetPart) -> FetchProgress:
        return [one async for one in self.mover.fetch(FOLDER, KEY, gets)][-1]

    def get(self, found: Manifest, how: GetFrom | GetLocal | GetRebuilt | GetStored) -> GetPart:
        return GetPart(self.number, self.endpoint, found.rank, found.digest, found.bytes, how)

    def staged(self, root: Path) -> dict[str, bytes]:
        at = root / self.endpoint_root / "staged" / "40.2"
        (one,) = at.iterdir()
        files = one / "files"
        return {str(p.relative_to(files)): p.read_bytes() for p in files.rglob("*") if p.is_file()}

    @property
    def endpoint_root(self) -> Path:
        return Path(f"held{self.number}") / FOLDER.name / self.endpoint


until = partial(eventually, limit_s=LIMIT_S)


@asynccontextmanager
async def site(directory: Path) -> AsyncIterator[list[Agent]]:
    now = datetime.now(UTC)
    authority = Authority.create(directory / "ca", "test", now=now)
    store = directory / "ckpt"
    store.mkdir(mode=0o755)
    agents: list[Agent] = []
    listening = []
    try:
        for number in range(COUNT):
            server = f"srv{number}"
            authority.issue_agent(server, directory / server, now=now)
            own = Credentials.load(directory / server, agent_name(server), now=now)
            held = DiskHolder(directory / f"held{number}", endpoints={f"gpu{number}"})
            await held.recover()
            await held.make(FOLDER)
            volumes = Volumes({"ckpt": Offer("ckpt", store, writable=True)})
            mover = PartMover(held, volumes, server, own, address=("127.0.0.1", 0))
            await mover.start()
            agent = Agent(number, held, mover, volumes)
            agents.append(agent)
            listening.append(asyncio.create_task(agent.listen()))
            rank = (FOLDER.name, number, agent.endpoint, namespace(number))
            mover.ranks_changed(lambda rank=rank: [rank])  # type: ignore[misc]
        yield agents
    finally:
        for task in listening:
            task.cancel()
        for agent in agents:
            await agent.mover.close()
            await agent.held.close()
            agent.volumes.close()


@pytest_asyncio.fixture(name="agents")
async def _agents(tmp_path: Path) -> AsyncIterator[list[Agent]]:
    with light():
        async with site(tmp_path) as agents:
            yield agents


async def test_copy_parity_store_and_all_ways_back(agents: list[Agent], tmp_path: Path) -> None:
    found = [await agent.write(3_000_000) for agent in agents]
    over_e0 = tuple(a.source(f, light=True) for a, f in zip(agents, found, strict=True))
    for agent in agents:
        other = (agent.number + 1) % COUNT
        await agent.keep(
            KeepCopy(agent.number, KEY, over_e0[other]),
            KeepParity(agent.number, KEY, over_e0),
            KeepStored(agent.number, KEY, STORE),
        )
    for agent in agents:
        copy = await agent.tells(lambda one: one.kind in {HoldingKind.COPY, HoldingKind.MISSING})
        assert (copy.kind, copy.rank) == (HoldingKind.COPY, (agent.number + 1) % COUNT), copy.why
        parity = await agent.tells(lambda one: one.kind is HoldingKind.PARITY)
        assert [member.digest for member in parity.covers] == [one.digest for one in found]
        stored = await agent.tells(lambda one: one.kind is HoldingKind.STORED)
        assert stored.digest == found[agent.number].digest
    refused = [
        h.why
        for a in agents
        for h in a.told
        if h.kind in {HoldingKind.REFUSED, HoldingKind.MISSING}
    ]
    assert refused == []

    # Rank 2 starts anew on the first server: its part comes from a copy, a rebuild, the store.
    here, lost = agents[0], found[2]
    covers = tuple(Member(one.rank, one.digest, one.bytes) for one in found)
    others = tuple(a.source(found[a.number], light=False) for a in agents if a.number != 2)
    copy_of_2 = Source(2, lost.digest, lost.bytes, "gpu1", "srv1", others[1].address)
    ways = (GetFrom(copy_of_2), GetRebuilt(covers, others, others), GetStored(STORE))
    for how in ways:
        last = await here.fetch(here.get(lost, how))
        assert last.faults == ()
        assert last.bytes_done == last.bytes_total == lost.bytes
        restored = here.staged(tmp_path)
        assert restored["model.bin"] == np.random.default_rng(2).bytes(3_000_000 + 2 * 7919)
        assert restored["empty"] == b""


async def test_a_pause_leaves_nothing_in_flight(agents: list[Agent]) -> None:
    """8 MB at 4 MB/s: many pauses of both ends fall into it."""
    giver, keeper = agents[1], agents[0]
    found = await giver.write(6_000_000)
    with inside(0, "sleep", "600") as near, inside(1, "sleep", "600") as far:
        pids = [await until(partial(in_namespace, one)) for one in (near, far)]
        await keeper.keep(KeepCopy(0, KEY, giver.source(found, light=True)), pace_bps=32_000_000)
        pauses = 0
        while not [one for one in keeper.told if one.rank == 1]:
            began = time.monotonic()
            await asyncio.gather(*(agent.mover.pause("red") for agent in agents))
            assert time.monotonic() - began < 2.0
            assert [in_flight.settled(pid) for pid in pids] == [True, True]
            pauses += 1
            for agent in agents:
                agent.mover.resume("red")
            await asyncio.sleep(0.05)
        (copy,) = [one for one in keeper.told if one.rank == 1]
        assert copy.kind is HoldingKind.COPY, copy.why
        assert pauses > 5


def in_namespace(process: subprocess.Popen[str]) -> int:
    """Return the process's number once it has entered its namespace."""
    own = Path("/proc/self/ns/net").stat().st_ino
    with contextlib.suppress(OSError):
        if Path(f"/proc/{process.pid}/ns/net").stat().st_ino != own:
            return process.pid
    return 0


async def test_a_program_that_took_the_port(agents: list[Agent]) -> None:
    giver, keeper = agents[1], agents[0]
    found = await giver.write(100_000)
    what = KeepCopy(0, KEY, giver.source(found, light=True))
    await keeper.keep(what)
    await keeper.tells(lambda one: one.kind is HoldingKind.COPY)
    giver.mover.ranks_changed(list)
    await until(lambda: not listens(1))
    with inside(1, sys.executable, "-c", TAKES_PORT, address(1), str(wire.PORT)) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "taken\n"
        giver.mover.ranks_changed(lambda: [(FOLDER.name, 1, "gpu1", namespace(1))])
        await keeper.held.drop(FOLDER.name, [KEY])
        since = len(keeper.told)
        await keeper.keep(what)
        copy = await keeper.tells(lambda one: "was not made" in one.why, since=since)
        assert copy.kind is HoldingKind.MISSING
        assert f"a program of rank 1 may use port {wire.PORT}" in copy.why
    # Once it has ended, the agent has the port.
    await until(lambda: listens(1))
    since = len(keeper.told)
    await keeper.keep(what)
    await keeper.tells(lambda one: one.kind is HoldingKind.COPY, since=since)


def listens(rank: int) -> bool:
    shown = ip("netns", "exec", namespace(rank), "ss", "-Htln", f"sport = :{wire.PORT}")
    return bool(shown)


async def test_a_rank_that_ended_gives_nothing_and_keeps_no_namespace(agents: list[Agent]) -> None:
    giver, keeper = agents[1], agents[0]
    found = await giver.write(100_000)
    await until(lambda: listens(1))
    giver.mover.ranks_changed(list)
    await until(lambda: not listens(1))
    await keeper.keep(KeepCopy(0, KEY, giver.source(found, light=True)))
    copy = await keeper.tells(lambda one: "was not made" in one.why)
    assert "cannot be reached" in copy.why
    keeper.mover.ranks_changed(list)
    (fault,) = await keeper.mover.keep(FOLDER.name, [KeepStored(0, KEY, STORE)], 0)
    assert fault.code == "not_found"
