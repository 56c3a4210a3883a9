"""The controller's side: many servers, some of them lost."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from agentlink.codec import read
from agentlink.ranks import GPU, RankKey
from agentlink.values import Device
from controller.devices.agents import messages
from controller.devices.agents.engine import AgentEngine
from controller.devices.engine import EngineError, EngineFault, RankSample, RankState, RankStatus
from protos import agent_pb2 as pb
from protos import agent_pb2_grpc
from tests.parts.agent.ranks import SLEEP
from tests.parts.agent.rig import AgentRig, agent_rig
from tests.unit.controller.devices.agents.specs import SPEC


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port without a listener, which no other process gets meanwhile."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


@contextlib.asynccontextmanager
async def two_servers(
    tmp_path: Path, lost_port: int
) -> AsyncIterator[tuple[AgentRig, AgentEngine]]:
    """A rig that answers as srv0, and srv1 that does not."""
    async with agent_rig(tmp_path) as rig:
        engine = AgentEngine(
            {"srv0": rig.address, "srv1": f"127.0.0.1:{lost_port}"}, trust=rig.trust
        )
        try:
            yield rig, engine
        finally:
            await engine.close()


async def test_a_lost_server_harms_only_its_own_jobs(tmp_path: Path, free_port: int) -> None:
    async with two_servers(tmp_path, free_port) as (rig, engine):
        await engine.start([rig.spec(0, *SLEEP)], 30)
        await engine.freeze("red")
        await engine.thaw("red")
        assert [s.state for s in await engine.observe()] == [RankState.RUNNING]
        assert engine.reachable() == {"srv0": True, "srv1": False}
        await engine.stop("red", 0)


async def test_an_unknown_job_may_be_on_the_lost_server(tmp_path: Path, free_port: int) -> None:
    async with two_servers(tmp_path, free_port) as (_, engine):
        with pytest.raises(EngineError) as failed:
            await engine.stop("red", 0)
        assert (failed.value.code, failed.value.obj) == ("unavailable", "server/srv1")
        assert failed.value.hint


async def test_a_job_that_cannot_start_whole_is_undone(tmp_path: Path, free_port: int) -> None:
    async with two_servers(tmp_path, free_port) as (rig, engine):
        away = replace(rig.spec(1, *SLEEP), server="srv1")
        with pytest.raises(EngineError) as failed:
            await engine.start([rig.spec(0, *SLEEP), away], 30)
        assert failed.value.code == "unavailable"
        assert await engine.observe() == []


async def test_a_server_that_is_not_in_the_site(tmp_path: Path, free_port: int) -> None:
    async with two_servers(tmp_path, free_port) as (rig, engine):
        with pytest.raises(EngineError) as failed:
            await engine.start([replace(rig.spec(0, *SLEEP), server="srv9")], 30)
        assert (failed.value.code, failed.value.obj) == ("not_found", "server/srv9")


async def test_a_text_that_can_not_be_sent_is_a_fault_like_another(
    tmp_path: Path, free_port: int
) -> None:
    """A job kept from an older version must not stay between starting and failed."""
    async with two_servers(tmp_path, free_port) as (rig, engine):
        with pytest.raises(EngineError) as failed:
            await engine.start([replace(rig.spec(0, *SLEEP), command=("\ud800",))], 30)
        assert (failed.value.code, failed.value.obj) == ("invalid", "job/red")


class Talker(agent_pb2_grpc.AgentServicer):
    """Sends one batch of telemetry a call, then ends the stream."""

    def __init__(self) -> None:
        self.calls = 0

    async def Telemetry(  # noqa: N802
        self, request: pb.TelemetryRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.TelemetryBatch]:
        self.calls += 1
        samples = [pb.Sample(job="red", rank=self.calls, endpoint="gpu0", source="emulated")]
        yield pb.TelemetryBatch(time=1.0, samples=samples)


async def test_telemetry_comes_back_after_a_broken_stream(free_port: int) -> None:
    server, talker = grpc.aio.server(), Talker()
    agent_pb2_grpc.add_AgentServicer_to_server(talker, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    engine = AgentEngine({"srv0": f"127.0.0.1:{port}", "srv1": f"127.0.0.1:{free_port}"})
    seen: list[RankSample] = []
    async with asyncio.timeout(60), contextlib.aclosing(engine.telemetry()) as stream:
        async for sample in stream:
            if isinstance(sample, RankSample):
                seen.append(sample)
            if len(seen) == 2:
                break
    assert [s.rank for s in seen] == [1, 2]
    assert seen[0].values == {}
    assert engine.reachable()["srv0"]
    await engine.close()
    await server.stop(0)


def test_what_a_source_does_not_give_is_none_not_zero() -> None:
    status = read(RankStatus, pb.RankStatus(job="red", state=pb.STATE_RUNNING), server="srv0")
    assert status.exit_code is None
    assert status.started_at is None
    assert read(RankStatus, pb.RankStatus(exit_code=0), server="srv0").exit_code == 0
    assert read(RankStatus, pb.RankStatus(), server="srv0").state is RankState.ABSENT


NUMBERS = (math.nan, math.inf, -math.inf, 1e300, -1.0)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_time_that_no_calendar_has_is_not_told(number: float) -> None:
    message = pb.RankStatus(job="red", started_at=number, finished_at=number)
    status = read(RankStatus, message, server="srv0")
    assert status.started_at is None
    assert status.finished_at is None
    (line,) = messages.lines_of(0, pb.LogBatch(lines=[pb.LogLine(time=number, text="x")]))
    assert line.time == 0.0
    samples = [pb.Sample(job="red", endpoint="gpu0", source="nvml")]
    assert messages.samples_of(pb.TelemetryBatch(time=number, samples=samples), 5.0) == []


@pytest.mark.parametrize("number", NUMBERS)
def test_a_figure_that_is_none_harms_no_view(number: float) -> None:
    gpu = pb.Gpu(temperature_c=number, throttle_reasons=["x" * 10_000] * 1_000)
    sample = pb.Sample(job="red", utilisation=number, source="s" * 10_000, gpu=gpu)
    (found,) = messages.samples_of(pb.TelemetryBatch(time=9.0, samples=[sample]), 5.0)
    assert found.time == 5.0  # a clock that is ahead does not make a sample last
    assert found.real
    assert 0 <= found.values.get("utilisation", 0) <= 1
    assert math.isfinite(found.values.get("temperature_c", 0))
    assert len(repr(found)) < 10_000


def test_texts_of_an_agent_are_cut_before_they_are_kept() -> None:
    long = "x" * 1_000_000
    status = read(
        RankStatus, pb.RankStatus(job="red", reason=long, container_id=long), server="srv0"
    )
    assert len(repr(status)) < 3_000
    fault = read(EngineFault, pb.Fault(code=long, object=long, message=long, hint=long))
    assert len(repr(fault)) < 5_000
    assert fault.code == "failed"


@pytest.mark.parametrize(
    "bad", [{"command": ("\ud800",)}, {"key": RankKey("red", -1, 1)}, {"image": "\ud800"}]
)
async def test_what_cannot_be_sent_is_told_and_starts_nothing(
    tmp_path: Path, bad: dict[str, object]
) -> None:
    async with agent_rig(tmp_path) as rig:
        with pytest.raises(EngineError) as refused:
            await rig.engine.start([replace(rig.spec(0, *SLEEP), **bad)], 30)  # type: ignore[arg-type]
        assert refused.value.code == "invalid"
        assert rig.docker.containers == {}


def test_a_rank_has_a_gpu_or_a_stand_in() -> None:
    emulated = messages.rank_message(replace(SPEC, emulated_share=0.25))
    assert emulated.WhichOneof("accelerator") == "emulated_share"
    real = messages.rank_message(replace(SPEC, devices=(Device(GPU, "GPU-1"),)))
    assert real.WhichOneof("accelerator") == "gpu_uuid"
    assert messages.rank_message(SPEC).WhichOneof("accelerator") is None


class Freezer(agent_pb2_grpc.AgentServicer):
    """Says of every freeze whether something is in flight; None is that it cannot be seen."""

    def __init__(self, settled: bool | None) -> None:
        self.settled = settled
        self.asked_s = -1.0

    async def Freeze(  # noqa: N802
        self, request: pb.FreezeRequest, context: grpc.aio.ServicerContext
    ) -> pb.RanksReply:
        self.asked_s = request.settle_s
        return pb.RanksReply(settled=self.settled)


@pytest.mark.parametrize(
    ("first", "second", "seen"),
    [
        (True, True, True),
        (True, False, False),
        (True, None, None),
        (False, None, None),
    ],
)
async def test_a_job_is_settled_when_all_of_its_servers_say_so(
    first: bool | None, second: bool | None, seen: bool | None
) -> None:
    servers, agents = [], {}
    for number, settled in enumerate((first, second)):
        server, servicer = grpc.aio.server(), Freezer(settled)
        agent_pb2_grpc.add_AgentServicer_to_server(servicer, server)
        agents[f"srv{number}"] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        servers.append((server, servicer))
    engine = AgentEngine(agents)
    assert await engine.freeze("red", 0.25) is seen
    assert [servicer.asked_s for _, servicer in servers] == [0.25, 0.25]
    await engine.close()
    for server, _ in servers:
        await server.stop(0)
