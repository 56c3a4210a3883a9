"""A mover's fetches, over TLS between two agents, and what it queues."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio

from agentlink.checkpoints import (
    FetchProgress,
    GetFrom,
    GetLocal,
    GetPart,
    GetRebuilt,
    GetStored,
    HoldingKind,
    KeepCopy,
    KeepParity,
    KeepStored,
    Source,
)
from agentlink.values import Scope, VolumeMount
from checkpoints.ledger import Key, Member
from container_mgr.checkpoints.values import HeldPart, PartPlace
from container_mgr.transfers import keeping
from container_mgr.transfers.channel import Channel
from container_mgr.transfers.mover import PartMover, job_of, newest
from container_mgr.transfers.pulling import Stop
from container_mgr.users import RankUser
from container_mgr.values import AgentError
from container_mgr.volumes.offers import Offer
from container_mgr.volumes.volumes import Volumes
from pki import Authority, Credentials, agent_name
from testbed.simulated.loop import settled
from tests.unit.container_mgr.transfers.fakes import (
    FOLDER,
    KEY,
    FakeHolder,
    content_of,
    files_of,
    flip,
    other,
)
from tests.unit.container_mgr.transfers.virtual import transfers

STORE = VolumeMount("ckpt", "/ckpt", scope=Scope.PROJECT, owner="vision")


@dataclass
class Agent:
    """One agent's halves."""

    server: str
    holder: FakeHolder
    mover: PartMover
    volumes: Volumes

    def source(self, part: HeldPart) -> Source:
        place, found = part.place, part.manifest
        address = f"127.0.0.1:{self.mover.port}"
        return Source(place.rank, found.digest, found.bytes, place.endpoint, self.server, address)


@dataclass
class Pair:
    """Two agents of one site."""

    here: Agent
    there: Agent

    async def fetch(self, *gets: GetPart, key: Key = KEY) -> FetchProgress:
        last = [one async for one in self.here.mover.fetch(FOLDER, key, gets)][-1]
        assert last.done
        return last


def get(part: HeldPart, how: GetLocal | GetFrom | GetRebuilt | GetStored, rank: int = 5) -> GetPart:
    found = part.manifest
    return GetPart(rank, "gpu0", part.place.rank, found.digest, found.bytes, how)


def credentials(directory: Path, *servers: str) -> list[Credentials]:
    now = datetime.now(UTC)
    authority = Authority.create(directory / "ca", "test", now=now)
    for server in servers:
        authority.issue_agent(server, directory / server, now=now)
    return [Credentials.load(directory / one, agent_name(one), now=now) for one in servers]


@pytest_asyncio.fixture(name="pair")
async def _pair(tmp_path: Path) -> AsyncIterator[Pair]:
    with transfers():
        async with paired(tmp_path) as pair:
            yield pair
        await settled()  # the threads end


@asynccontextmanager
async def paired(tmp_path: Path) -> AsyncIterator[Pair]:
    agents = []
    store = tmp_path / "ckpt"
    store.mkdir(mode=0o755)
    for one in credentials(tmp_path, "srv0", "srv1"):
        server = one.name.partition(".")[0]
        holder = FakeHolder(tmp_path / f"held-{server}")
        volumes = Volumes({"ckpt": Offer("ckpt", store, writable=True)})
        mover = PartMover(holder, volumes, server, one, address=("127.0.0.1", 0))
        await mover.start()
        agents.append(Agent(server, holder, mover, volumes))
    try:
        yield Pair(*agents)
    finally:
        for agent in agents:
            await agent.mover.close()
            agent.volumes.close()


@pytest.mark.real_time
async def test_a_part_comes_over_tls(pair: Pair) -> None:
    part = pair.there.holder.own("gpu1", 1, files_of(1, 3_000_000))
    last = await pair.fetch(get(part, GetFrom(pair.there.source(part))))
    assert last.faults == ()
    assert last.bytes_done == last.bytes_total == part.manifest.bytes
    assert content_of(pair.here.holder.restored[5][0]) == files_of(1, 3_000_000)


async def test_a_copy_is_given_as_its_owner_would(pair: Pair) -> None:
    part = pair.there.holder.own("gpu1", 1, files_of(1))
    moved = replace(part, place=replace(part.place, endpoint="gpu2", kind=HoldingKind.COPY))
    pair.there.holder.parts = {moved.place: moved}
    last = await pair.fetch(get(part, GetFrom(pair.there.source(moved))))
    assert last.faults == ()


async def test_a_part_of_this_server(pair: Pair) -> None:
    part = pair.here.holder.own("gpu3", 1, files_of(1))
    last = await pair.fetch(get(part, GetLocal("gpu3")))
    assert last.faults == ()
    assert last.bytes_done == part.manifest.bytes
    assert pair.here.holder.restored[5][1] == part.manifest


async def test_a_part_that_came_is_not_fetched_again(pair: Pair) -> None:
    """A fetch ahead of a start, and then that of the start: the owner may be gone meanwhile."""
    part = pair.there.holder.own("gpu1", 1, files_of(1))
    wanted = get(part, GetFrom(pair.there.source(part)))
    await pair.fetch(wanted)
    assert pair.here.holder.expected == {FOLDER.name: {"gpu0"}}
    pair.there.holder.parts.clear()
    last = await pair.fetch(wanted)
    assert (last.faults, last.bytes_done) == ((), part.manifest.bytes)
    flip(pair.here.holder.restored[5][0] / "model.bin")
    assert (await pair.fetch(wanted)).faults  # what came is not whole any more


async def test_a_damaged_part_of_this_server(pair: Pair) -> None:
    part = pair.here.holder.own("gpu3", 1, files_of(1))
    flip(part.root / "model.bin")
    (fault,) = (await pair.fetch(get(part, GetLocal("gpu3")))).faults
    assert (fault.endpoint, fault.part, fault.rank) == ("gpu3", 1, 5)
    assert "model.bin (content)" in fault.message
    assert pair.here.holder.damages


async def test_each_part_fails_by_itself(pair: Pair) -> None:
    good = pair.there.holder.own("gpu1", 1, files_of(1))
    bad = pair.there.holder.own("gpu2", 2, files_of(2))
    flip(bad.root / "deep/er/optimizer.bin")
    (fault,) = (
        await pair.fetch(
            get(good, GetFrom(pair.there.source(good)), 1),
            get(bad, GetFrom(pair.there.source(bad)), 2),
        )
    ).faults
    assert (fault.endpoint, fault.rank) == ("gpu2", 2)
    assert list(pair.here.holder.restored) == [1]
    # The agent that gave it took it out as well.
    assert [place.endpoint for place, _ in pair.there.holder.damages] == ["gpu2"]


@pytest.mark.real_time
async def test_an_agent_of_another_name_is_not_trusted(pair: Pair) -> None:
    part = pair.there.holder.own("gpu1", 1, files_of(1))
    source = replace(pair.there.source(part), server="srv7")
    (fault,) = (await pair.fetch(get(part, GetFrom(source)))).faults
    assert "is not the agent of srv7" in fault.message


async def test_an_agent_that_does_not_know_the_job(pair: Pair) -> None:
    part = pair.there.holder.own("gpu1", 1, files_of(1))
    pair.there.holder.folders = {FOLDER.name: other()}
    (fault,) = (await pair.fetch(get(part, GetFrom(pair.there.source(part))))).faults
    assert "is not an agent of this job" in fault.message
    assert "port" not in fault.message


@pytest.mark.real_time
async def test_a_peer_without_a_certificate(pair: Pair) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(OSError):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", pair.there.mover.port, ssl=context
        )
        writer.write(b"LLP1")
        assert await reader.read(1)
        raise AssertionError("it answered")


@pytest.mark.real_time
async def test_a_certificate_that_is_not_an_agents(pair: Pair, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    Authority.load(tmp_path / "ca").issue_controller(tmp_path / "controller", now=now)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(tmp_path / "ca/ca.pem")
    context.load_cert_chain(tmp_path / "controller/cert.pem", tmp_path / "controller/key.pem")
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", pair.there.mover.port, ssl=context, server_hostname=agent_name("srv1")
    )
    name = FOLDER.name.encode()
    writer.write(b"LLP1" + bytes([len(name)]) + name + os.urandom(32))
    try:
        assert await reader.read(1) == b""
    except OSError:
        return
    finally:
        writer.close()


async def coded(pair: Pair, lost: int = 2) -> tuple[GetPart, HeldPart]:
    """Have four parts, all parities but the lost rank's, and the request to rebuild its part."""
    agent = pair.there
    parts = [agent.holder.own(f"gpu{rank}", rank, files_of(rank, 2_000_000)) for rank in range(4)]
    members = tuple(agent.source(part) for part in parts)
    for rank in range(4):
        reach = replace(agent.mover._reach(FOLDER), server="srv1")
        keeper = keeping.Keeper(agent.holder, reach, f"gpu{rank}")
        work = KeepParity(rank, KEY, members)
        await asyncio.to_thread(keeping.keep, keeper, work, Stop())
        assert agent.holder.told[-1].kind is HoldingKind.PARITY, agent.holder.told[-1].why
    for kind in (HoldingKind.OWN, HoldingKind.PARITY):
        del agent.holder.parts[PartPlace(FOLDER.name, f"gpu{lost}", kind, lost, KEY)]
    covers = tuple(Member(one.rank, one.digest, one.bytes) for one in members)
    others = tuple(one for one in members if one.rank != lost)
    return get(parts[lost], GetRebuilt(covers, others, others)), parts[lost]


@pytest.mark.parametrize("lost", [0, 2, 3])
async def test_a_lost_part_is_rebuilt(pair: Pair, lost: int) -> None:
    wanted, _ = await coded(pair, lost)
    last = await pair.fetch(wanted)
    assert last.faults == ()
    assert last.bytes_done == last.bytes_total
    assert content_of(pair.here.holder.restored[5][0]) == files_of(lost, 2_000_000)


async def test_who_gave_damaged_bytes_to_a_rebuilt_part(pair: Pair) -> None:
    wanted, _ = await coded(pair)
    damaged = pair.there.holder.parts[PartPlace(FOLDER.name, "gpu3", HoldingKind.OWN, 3, KEY)]
    # At a place that every rebuild reads.
    for at in range(0, 2_000_000, 200_000):
        flip(damaged.root / "model.bin", at)
    faults = (await pair.fetch(wanted)).faults
    assert [fault.endpoint for fault in faults] == ["gpu3"]
    assert pair.here.holder.restored == {}
    assert {place.rank for place, _ in pair.there.holder.damages} == {3}


async def test_a_rebuild_without_one_more_member(pair: Pair) -> None:
    wanted, _ = await coded(pair)
    del pair.there.holder.parts[PartPlace(FOLDER.name, "gpu1", HoldingKind.PARITY, 1, KEY)]
    (fault,) = (await pair.fetch(wanted)).faults
    assert fault.endpoint == "gpu1"


async def stored(pair: Pair) -> tuple[HeldPart, Path]:
    part = pair.here.holder.own("gpu0", 0, files_of(0))
    user = RankUser(os.geteuid(), os.getegid())
    store = Path(await pair.here.volumes.directory(STORE, user, "ckpt"))
    keeper = keeping.Keeper(pair.here.holder, pair.here.mover._reach(FOLDER), "gpu0", store)
    await asyncio.to_thread(keeping.keep, keeper, KeepStored(0, KEY, STORE), Stop())
    assert pair.here.holder.told[-1].kind is HoldingKind.STORED, pair.here.holder.told[-1].why
    return part, store / "lightloom-checkpoints" / FOLDER.name / "100.3"


async def test_a_part_comes_from_a_store(pair: Pair) -> None:
    part, _ = await stored(pair)
    last = await pair.fetch(get(part, GetStored(STORE)))
    assert last.faults == ()
    assert content_of(pair.here.holder.restored[5][0]) == files_of(0)


async def test_a_store_that_was_changed(pair: Pair) -> None:
    part, where = await stored(pair)
    flip(where / "0/model.bin")
    (fault,) = (await pair.fetch(get(part, GetStored(STORE)))).faults
    assert (fault.endpoint, "model.bin (content)" in fault.message) == ("", True)
    (where / "0.json").write_text("{")
    (fault,) = (await pair.fetch(get(part, GetStored(STORE)))).faults
    assert "manifest in the store cannot be read" in fault.message
    (where / "0.json").unlink()
    (fault,) = (await pair.fetch(get(part, GetStored(STORE)))).faults
    assert "does not have rank 0's part of step 100" in fault.message


async def test_a_full_folder_blames_no_endpoint(pair: Pair) -> None:
    part = pair.there.holder.own("gpu1", 1, files_of(1))
    pair.here.holder.limit = 10
    (fault,) = (await pair.fetch(get(part, GetFrom(pair.there.source(part))))).faults
    assert (fault.endpoint, fault.message) == ("", "the folder is full")


async def test_an_equal_fetch_is_joined_and_survives_its_caller(pair: Pair) -> None:
    part = pair.there.holder.own("gpu1", 1, files_of(1))
    gets = [get(part, GetFrom(pair.there.source(part)))]

    async def first() -> None:
        async with aclosing(pair.here.mover.fetch(FOLDER, KEY, gets)) as progress:  # type: ignore[type-var]
            async for _ in progress:
                pass

    leaves = asyncio.create_task(first())
    await asyncio.sleep(0)
    leaves.cancel()
    last = await pair.fetch(*gets)
    assert last.faults == ()
    assert pair.here.holder.count == 1


async def test_another_key_for_a_known_job(pair: Pair) -> None:
    with pytest.raises(AgentError, match="another key"):
        async for _ in pair.here.mover.fetch(other(), KEY, []):
            pass


async def test_faults_of_what_cannot_be_kept(pair: Pair) -> None:
    part = pair.there.holder.own("gpu1", 1, files_of(1))
    what = KeepCopy(0, KEY, pair.there.source(part))
    (fault,) = await pair.here.mover.keep(FOLDER.name, [what], 0)
    assert fault.code == "not_found"
    pair.here.holder.folders.clear()
    (fault,) = await pair.here.mover.keep(FOLDER.name, [what], 0)
    assert "no such folder" in fault.message


def copies(*steps: int) -> Sequence[KeepCopy]:
    source = Source(1, "0" * 8, 1, "gpu1", "srv1", "10.0.0.1")
    return [KeepCopy(0, Key(step, 1), source) for step in steps]


def test_the_newest_of_each_kind_is_kept() -> None:
    old, new = copies(10, 20)
    elsewhere = replace(old, rank=3)
    assert newest([old, new, elsewhere]) == [new, elsewhere]
    parity = KeepParity(0, Key(10, 1), (old.source,))
    assert newest([new, parity]) == [new, parity]


def test_the_job_of_a_namespace() -> None:
    assert job_of("ll-c-a-b-3-12") == "a-b"


async def test_a_mover_ends_while_ranks_change(pair: Pair) -> None:
    await asyncio.sleep(1)  # it waits for a change
    pair.here.mover.ranks_changed(list)
    async with asyncio.timeout(20):
        await pair.here.mover.close()


@pytest.mark.real_time
async def test_an_end_sends_nothing_in_the_network_of_a_frozen_job(pair: Pair) -> None:
    """Its light may be moving: what waits to be sent ends unsent."""
    mover = pair.here.mover
    mover.ranks_changed(lambda: [(FOLDER.name, 0, "gpu0", "ll-c-red-0-1")])
    await mover.pause("red")
    gate = mover._gates["ll-c-red-0-1"]
    ours, theirs = socket.socketpair()
    theirs.settimeout(0.1)
    channel = Channel(ours, gate)
    sending = threading.Thread(target=_ignored, args=(channel,))
    sending.start()
    async with asyncio.timeout(20):
        await mover.close()
    assert not gate.is_open
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(theirs.recv, 100)
    channel.abort()
    await asyncio.to_thread(sending.join)
    channel.close()
    theirs.close()


def _ignored(channel: Channel) -> None:
    with suppress(OSError):
        channel.send(b"late", channel.deadline(30))
