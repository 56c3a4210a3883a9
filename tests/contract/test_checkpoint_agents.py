"""The contract of checkpoints, for agents over fakes of what holds and moves parts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import structlog

from agentlink.checkpoints import GetFrom, HoldingKind
from checkpoints.ledger import Key
from container_mgr.checkpoints.contract import News
from container_mgr.rpc.checkpoint_messages import holdings_batches
from controller.devices.agents.engine import AgentEngine
from controller.devices.checkpoints import HoldingsNews
from controller.devices.engine import EngineError
from protos import agent_pb2 as pb
from protos import agent_pb2_grpc
from tests.contract.checkpoint_contract import (
    COPY,
    FOLDER,
    GET,
    RED,
    SECRET,
    SERVER,
    SOURCE,
    STEP,
    CheckpointContract,
    calls,
    fetched,
    own,
)
from tests.parts.agent.rig import AgentRig, agent_rig

BOOT = "00000000-1111-2222-3333-444444444444"


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AgentRig]:
    async with agent_rig(tmp_path) as one:
        yield one


class TestAgents(CheckpointContract):
    @pytest_asyncio.fixture
    async def rig(self, tmp_path: Path) -> AsyncIterator[AgentRig]:
        async with agent_rig(tmp_path) as one:
            yield one


def test_an_older_controller_finds_only_kinds_that_it_knows_among_what_is_held() -> None:
    told = (own(0), own(1, Key(0, 1), kind=HoldingKind.IGNORED, digest="", why="'final'"))
    (batch,) = holdings_batches(News(told, caught_up=True))
    assert [one.kind for one in batch.holdings] == [pb.HOLDING_OWN]
    assert batch.caught_up


async def test_a_server_that_does_not_answer_is_unavailable(rig: AgentRig) -> None:
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        engine = AgentEngine({SERVER: f"127.0.0.1:{kept.getsockname()[1]}"})
        try:
            for call in calls(replace(rig, engine=engine), SERVER).values():
                with pytest.raises(EngineError) as failed:
                    await call()
                assert (failed.value.code, failed.value.obj) == ("unavailable", "server/srv0")
        finally:
            await engine.close()


async def test_a_part_of_a_server_that_has_told_nothing_cannot_be_fetched(rig: AgentRig) -> None:
    with pytest.raises(EngineError) as failed:
        async for _ in rig.engine.fetch(SERVER, FOLDER, STEP, [GET], 60):
            pass
    assert (failed.value.code, failed.value.obj) == ("unavailable", "server/srv0")
    away = replace(GET, how=GetFrom(replace(SOURCE, server="srv9")))
    with pytest.raises(EngineError) as unknown:
        async for _ in rig.engine.fetch(SERVER, FOLDER, STEP, [away], 60):
            pass
    assert (unknown.value.code, unknown.value.obj) == ("not_found", "server/srv9")
    assert not rig.transfers.fetches


async def test_the_key_is_in_no_log_and_no_error(
    rig: AgentRig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with structlog.testing.capture_logs() as entries:
        await fetched(rig, GET)
        for wrong in (
            replace(FOLDER, key=SECRET + b"x"),
            replace(FOLDER, size_bytes=0),
            replace(FOLDER, name="../x"),
            replace(FOLDER, size_bytes=-1),
        ):
            with pytest.raises(EngineError) as refused:
                await fetched(rig, GET, folder=wrong)
            assert refused.value.code == "invalid"
            entries.append({"event": repr(refused.value), "cause": repr(refused.value.__cause__)})
        await rig.engine.keep(SERVER, RED, [COPY], 0, 60)
    told = repr(entries) + caplog.text + repr(rig.transfers.fetches)
    for shown in (repr(SECRET)[2:-1], SECRET.hex(), "\\252K", str(list(SECRET))[1:-1]):
        assert shown not in told


async def test_an_agent_without_checkpoints_says_so(tmp_path: Path) -> None:
    """An older agent, or one that was given no place for them."""
    async with serving(agent_pb2_grpc.AgentServicer()) as engine:
        with pytest.raises(EngineError) as refused:
            await engine.keep(SERVER, RED, [COPY], 0, 60)
        assert refused.value.code == "failed"


class Teller(agent_pb2_grpc.AgentServicer):
    """Streams what it is told to, once a call; then it breaks or waits."""

    def __init__(self, *batches: pb.HoldingsBatch, breaks: bool = False) -> None:
        self.batches = batches
        self.breaks = breaks
        self.calls = 0
        self.sent = 0
        self.fetch: list[pb.FetchProgress] = []
        self.verified: list[pb.VerifyBatch] = []

    async def Holdings(  # noqa: N802
        self, request: pb.HoldingsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.HoldingsBatch]:
        self.calls += 1
        for batch in self.batches:
            self.sent += 1
            yield batch
        if self.breaks:
            await context.abort(grpc.StatusCode.INTERNAL, "broken")
        await asyncio.sleep(3600)

    async def Fetch(  # noqa: N802
        self, request: pb.FetchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.FetchProgress]:
        for message in self.fetch:
            yield message

    async def VerifySteps(  # noqa: N802
        self, request: pb.VerifyStepsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.VerifyBatch]:
        for message in self.verified:
            yield message


@contextlib.asynccontextmanager
async def serving(*servicers: agent_pb2_grpc.AgentServicer) -> AsyncIterator[AgentEngine]:
    """Yield the engine of a site whose srv0, srv1, ... have the endpoint of their number."""
    agents, owned = {}, {}
    async with contextlib.AsyncExitStack() as stack:
        for number, servicer in enumerate(servicers):
            server = grpc.aio.server()
            agent_pb2_grpc.add_AgentServicer_to_server(servicer, server)
            agents[f"srv{number}"] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            owned[f"srv{number}"] = frozenset({f"gpu{number}"})
            await server.start()
            stack.push_async_callback(server.stop, 0)
        engine = AgentEngine(agents, endpoints=owned)
        stack.push_async_callback(engine.close)
        yield engine


async def taken(engine: AgentEngine, good: Callable[[list[HoldingsNews]], bool]) -> list[Any]:
    """Read news until they are good."""
    found: list[HoldingsNews] = []
    async with asyncio.timeout(60), contextlib.aclosing(engine.holdings()) as stream:  # type: ignore[type-var]
        async for one in stream:
            found.append(one)
            if good(found):
                return found
    raise AssertionError("the stream ended")


def holding(rank: int = 0, endpoint: str = "gpu0", **changed: Any) -> pb.Holding:
    fields = {
        "folder": RED,
        "step": pb.StepKey(step=10, epoch=1),
        "rank": rank,
        "endpoint": endpoint,
        "kind": pb.HOLDING_OWN,
        "digest": "0000beef",
        "bytes": 1,
    }
    return pb.Holding(**(fields | changed))


async def test_who_tells_of_others_endpoints_loses_only_these_entries() -> None:
    lies = [holding(1, "gpu1"), holding(), holding(2, "gpu9"), holding(endpoint="../gpu0")]
    liar = Teller(pb.HoldingsBatch(holdings=lies, caught_up=True, boot_id=BOOT))
    honest = Teller(pb.HoldingsBatch(holdings=[holding(1, "gpu1")], boot_id=BOOT))
    with structlog.testing.capture_logs() as entries:
        async with serving(liar, honest) as engine:
            news = await taken(engine, lambda found: len(found) == 2)
            assert engine.dropped() == {"srv0": 3, "srv1": 0}
    told = {(one.server, held.endpoint) for one in news for held in one.holdings}
    assert told == {("srv0", "gpu0"), ("srv1", "gpu1")}
    assert [entry["server"] for entry in entries if "dropped" in entry] == ["srv0"]


async def test_a_stream_that_breaks_is_read_again_from_its_beginning() -> None:
    batches = (
        pb.HoldingsBatch(boot_id=BOOT, transfer_port=7),
        pb.HoldingsBatch(holdings=[holding()], boot_id="is only read at the beginning"),
    )
    breaking, steady = Teller(*batches, breaks=True), Teller(*batches)
    async with serving(breaking, steady) as engine:
        news = await taken(engine, lambda f: sum(n.began for n in f if n.server == "srv0") == 3)
    first = [n for n in news if n.server == "srv0"]
    assert [n.began for n in first] == [True, False, True, False, True]
    assert [n.boot_id for n in first] == [BOOT, "", BOOT, "", BOOT]
    assert steady.calls == 1


async def test_a_flood_waits_in_the_servers_own_memory_and_hinders_no_other() -> None:
    class Flood(Teller):
        async def Holdings(  # noqa: N802
            self, request: pb.HoldingsRequest, context: grpc.aio.ServicerContext
        ) -> AsyncIterator[pb.HoldingsBatch]:
            batch = pb.HoldingsBatch(holdings=[holding()] * 5_000)
            while True:
                self.sent += 1
                yield batch

    flood, steady = Flood(), Teller(*[pb.HoldingsBatch(holdings=[holding(1, "gpu1")])] * 20)
    async with serving(flood, steady) as engine:
        news = await taken(engine, lambda f: sum(n.server == "srv1" for n in f) == 20)
        assert flood.sent < 200
        assert all(len(n.holdings) <= 1000 for n in news)
        assert engine.dropped()["srv0"] >= 4000


class Garbled(grpc.GenericRpcHandler):
    """Answers each call with a message that has a text that is not UTF-8."""

    def __init__(self, **messages: Any) -> None:
        self.messages = messages
        self.asked: asyncio.Queue[str] = asyncio.Queue()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method.rpartition("/")[2]
        raw = self.messages[method].SerializeToString().replace(b"gpu?", b"gpu\xff")

        async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
            self.asked.put_nowait(method)
            yield raw

        async def single(request: bytes, context: Any) -> bytes:
            return bytes(raw)

        if method in ("Holdings", "Telemetry", "Fetch"):
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(single)


async def test_a_text_that_is_none_harms_only_its_own_server() -> None:
    """protobuf refuses a text that is not UTF-8, and gRPC hands on None in its place."""
    garbled = Garbled(
        Holdings=pb.HoldingsBatch(holdings=[holding(why="gpu?")]),
        Telemetry=pb.TelemetryBatch(samples=[pb.Sample(endpoint="gpu?")]),
        Fetch=pb.FetchProgress(faults=[pb.FetchFault(message="gpu?")]),
        Keep=pb.KeepReply(faults=[pb.Fault(message="gpu?")]),
        Command=pb.CommandReply(term=1),
        Observe=pb.RanksReply(ranks=[pb.RankStatus(endpoint="gpu?")]),
        Volumes=pb.VolumesReply(volumes=[pb.Volume(name="gpu?")]),
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((garbled,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    engine = AgentEngine({SERVER: f"127.0.0.1:{port}"})
    engine._ports[SERVER] = 7410
    try:
        for stream in (engine.holdings(), engine.telemetry()):
            reading = asyncio.ensure_future(anext(stream))
            async with asyncio.timeout(60):
                first, second = await garbled.asked.get(), await garbled.asked.get()
            assert first == second  # it is read again
            assert not reading.done()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        assert await engine.observe() == []
        assert await engine.volumes(60) == {}
        with pytest.raises(EngineError) as unread:
            await engine.keep(SERVER, RED, [COPY], 0, 60)
        assert unread.value.code == "failed"
        with pytest.raises(EngineError) as unread:
            async for _ in engine.fetch(SERVER, FOLDER, STEP, [GET], 60):
                pass
        assert unread.value.code == "failed"
    finally:
        await engine.close()
        await server.stop(0)


async def test_what_a_fetch_and_a_verification_tell_is_bounded() -> None:
    teller = Teller()
    faults = [pb.FetchFault(rank=1, part=1, endpoint="../x", message="m" * 10_000)] * 3000
    faults += [pb.FetchFault(rank=2**31, part=1)]
    teller.fetch = [pb.FetchProgress(bytes_total=2**64 - 1), pb.FetchProgress(done=True)]
    teller.fetch[1].faults.extend(faults[:300] + faults[-1:])
    step = pb.StepKey(step=10, epoch=1)
    part = pb.Verified(step=step, endpoint="gpu0", kind=pb.HOLDING_OWN, damages=["d" * 9999] * 99)
    foreign = pb.Verified(step=step, endpoint="gpu1", kind=pb.HOLDING_OWN)
    teller.verified = [pb.VerifyBatch(verified=[part, foreign])]
    async with serving(teller) as engine:
        local = replace(GET, how=GetFrom(SOURCE))
        engine._ports["srv0"] = 7410
        first, last = [p async for p in engine.fetch(SERVER, FOLDER, STEP, [local], 60)]
        assert first.bytes_total == 2**53
        assert len(last.faults) == 300
        assert {(f.endpoint, len(f.message)) for f in last.faults} == {("", 1000)}
        (one,) = [v async for v in engine.verify_steps(SERVER, RED, STEP, 60)]
        assert (one.key, len(one.damages), len(one.damages[0])) == (Key(10, 1), 16, 1100)
        teller.verified = [pb.VerifyBatch(verified=[foreign] * 20_000)] * 9
        with pytest.raises(EngineError) as endless:
            async for _ in engine.verify_steps(SERVER, RED, None, 60):
                pass
        assert endless.value.code == "failed"
