"""Volumes between the engine and its agents: what is sent, and what a lying agent may say."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest

from agentlink.values import Scope, VolumeMount
from controller.devices.agents.engine import AgentEngine
from controller.devices.agents.messages import rank_message, volumes_of
from controller.devices.engine import EngineError, Fenced
from protos import agent_pb2 as pb
from protos import agent_pb2_grpc
from tests.unit.controller.devices.agents.specs import SPEC

NOW = 1_800_000_000.0


def test_a_rank_is_sent_with_its_volumes_and_user() -> None:
    mounts = (
        VolumeMount("imagenet", "/data", read_only=True, read_bps=10**9),
        VolumeMount(
            "scratch", "/s", read_only=False, scope=Scope.JOB, owner="vision.red", quota_bytes=2**30
        ),
    )
    sent = rank_message(replace(SPEC, volumes=mounts, uid=2001, gid=2000))
    assert (sent.uid, sent.gid) == (2001, 2000)
    data, scratch = sent.volumes
    assert (data.volume, data.path, data.read_only) == ("imagenet", "/data", True)
    assert (data.scope, data.owner, data.read_bps) == (pb.SCOPE_SITE, "", 10**9)
    assert not data.HasField("quota_bytes")
    assert (scratch.scope, scratch.owner, scratch.quota_bytes) == (
        pb.SCOPE_JOB,
        "vision.red",
        2**30,
    )
    bare = rank_message(SPEC)
    assert not bare.HasField("uid")
    assert not bare.volumes


def test_what_an_honest_agent_says_is_read() -> None:
    reply = pb.VolumesReply()
    volume = reply.volumes.add(
        name="scratch", filesystem="xfs", total_bytes=2**40, free_bytes=0, quota="kernel"
    )
    volume.data.add(
        scope=pb.SCOPE_JOB,
        owner="vision.red",
        uid=2001,
        bytes=5,
        created_at=NOW - 9,
        used_at=NOW - 3,
        jobs=["red"],
    )
    (scratch,) = volumes_of(reply, NOW)
    assert (scratch.read_only, scratch.problem, scratch.quota) == (False, "", "kernel")
    assert (scratch.total_bytes, scratch.free_bytes) == (2**40, 0)
    (data,) = scratch.data
    assert (data.scope, data.owner, data.uid) == (Scope.JOB, "vision.red", 2001)
    assert (data.bytes, data.files, data.measured_at) == (5, None, None)
    assert (data.created_at, data.used_at, data.jobs) == (NOW - 9, NOW - 3, ("red",))


def test_what_a_lying_agent_says_is_cut() -> None:
    reply = pb.VolumesReply()
    for name in ("../etc", "", "A", "x" * 64):
        reply.volumes.add(name=name)
    for _ in range(2):  # the first one counts
        reply.volumes.add(
            name="v", problem="p" * 10_000, filesystem="f" * 999, quota="magic", total_bytes=2**63
        )
    liar = reply.volumes[4]
    for owner in ("../x", "", "a.b.c", "x" * 99):
        liar.data.add(scope=pb.SCOPE_JOB, owner=owner)
    liar.data.add(scope=pb.SCOPE_SITE, owner="vision")
    jobs = [f"j{i}" for i in range(500)] + ["../x"]
    liar.data.add(
        scope=pb.SCOPE_PROJECT,
        owner="vision",
        bytes=2**64 - 1,
        used_at=NOW * 2,
        created_at=float("nan"),
        measured_at=float("inf"),
        jobs=jobs,
    )
    (volume,) = volumes_of(reply, NOW)
    assert (len(volume.problem), len(volume.filesystem)) == (1000, 64)
    assert (volume.quota, volume.total_bytes) == ("", None)
    (data,) = volume.data
    assert (data.bytes, data.used_at, data.created_at) == (None, NOW, None)
    assert data.measured_at is None
    assert len(data.jobs) == 64


def test_lists_without_end_are_cut() -> None:
    reply = pb.VolumesReply()
    for number in range(100):
        volume = reply.volumes.add(name=f"v{number}")
        for entry in range(100):
            volume.data.add(scope=pb.SCOPE_PROJECT, owner=f"p{entry}")
    found = volumes_of(reply, NOW)
    assert len(found) == 64
    assert sum(len(volume.data) for volume in found) == 4096


class Keeper(agent_pb2_grpc.AgentServicer):
    """An agent with one volume."""

    refusal: grpc.StatusCode | None = None

    async def Observe(  # noqa: N802
        self, request: pb.ObserveRequest, context: grpc.aio.ServicerContext
    ) -> pb.RanksReply:
        return pb.RanksReply()

    async def Command(  # noqa: N802
        self, request: pb.CommandRequest, context: grpc.aio.ServicerContext
    ) -> pb.CommandReply:
        return pb.CommandReply()

    async def Volumes(  # noqa: N802
        self, request: pb.VolumesRequest, context: grpc.aio.ServicerContext
    ) -> pb.VolumesReply:
        return pb.VolumesReply(volumes=[pb.Volume(name="scratch")])

    async def RemoveData(  # noqa: N802
        self, request: pb.RemoveDataRequest, context: grpc.aio.ServicerContext
    ) -> pb.RemoveDataReply:
        if self.refusal is not None:
            await context.abort(self.refusal, "a container of job red uses it")
        return pb.RemoveDataReply(removed=request.owner == "vision.red")


@contextlib.asynccontextmanager
async def serving(agent: Keeper) -> AsyncIterator[AgentEngine]:
    """Yield an engine of two servers, of which one never answers."""
    server = grpc.aio.server()
    agent_pb2_grpc.add_AgentServicer_to_server(agent, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    engine = AgentEngine({"srv0": f"127.0.0.1:{port}", "srv1": "127.0.0.1:1"})
    try:
        await engine.observe()
        yield engine
    finally:
        await engine.close()
        await server.stop(0)


async def test_only_servers_that_answer_are_listed() -> None:
    async with serving(Keeper()) as engine:
        offered = await engine.volumes(10.0)
        assert {server: [v.name for v in found] for server, found in offered.items()} == {
            "srv0": ["scratch"]
        }


async def test_data_is_removed() -> None:
    async with serving(Keeper()) as engine:
        assert await engine.remove_data("srv0", "scratch", Scope.JOB, "vision.red")
        assert not await engine.remove_data("srv0", "scratch", Scope.JOB, "vision.blue")
        with pytest.raises(EngineError) as unknown:
            await engine.remove_data("srv9", "scratch", Scope.JOB, "vision.red")
        assert unknown.value.code == "not_found"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.ABORTED, "conflict"),
        (grpc.StatusCode.NOT_FOUND, "not_found"),
        (grpc.StatusCode.UNAVAILABLE, "unavailable"),
    ],
)
async def test_a_refused_removal_is_an_error(status: grpc.StatusCode, code: str) -> None:
    agent = Keeper()
    async with serving(agent) as engine:
        agent.refusal = status
        with pytest.raises(EngineError) as refused:
            await engine.remove_data("srv0", "scratch", Scope.JOB, "vision.red")
        assert refused.value.code == code
        assert not isinstance(refused.value, Fenced)
