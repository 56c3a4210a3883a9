"""What a controller sees of an agent's volumes, and what an agent refuses to every caller."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from base import clock
from container_mgr.fence import TERM_KEY
from container_mgr.users import DEFAULT_ID
from container_mgr.volumes.offers import Offer
from controller.devices.agents.messages import rank_message
from protos import agent_pb2 as pb
from protos import agent_pb2_grpc
from testbed.simulated.clock import VirtualClock
from tests.parts.agent.ranks import SLEEP
from tests.parts.agent.rig import AgentRig, agent_rig

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives directories to other users")

JOB = pb.VolumeMount(
    volume="scratch", path="/scratch", scope=pb.SCOPE_JOB, owner="vision.red", quota_bytes=1 << 20
)
DATA = pb.RemoveDataRequest(volume="scratch", scope=pb.SCOPE_JOB, owner="vision.red")


@dataclass
class Caller:
    """Calls an agent as the newest controller does."""

    rig: AgentRig
    stub: agent_pb2_grpc.AgentStub

    async def __call__(self, method: str, request: Any) -> Any:
        return await getattr(self.stub, method)(request, timeout=60, metadata=((TERM_KEY, "5"),))

    async def start(self, *volumes: pb.VolumeMount, rank: int = 0, **ids: int) -> pb.RanksReply:
        message = rank_message(self.rig.spec(rank, *SLEEP))
        message.volumes.extend(volumes)
        for name, number in ids.items():
            setattr(message, name, number)
        return await self("Start", pb.StartRequest(ranks=[message]))

    async def refusal(self, method: str, request: Any) -> tuple[object, str]:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await self(method, request)
        return refused.value.code(), refused.value.details() or ""


@pytest_asyncio.fixture
async def call(tmp_path: Path) -> AsyncIterator[Caller]:
    for name in ("data", "scratch"):
        (tmp_path / name).mkdir(mode=0o755)
    offers = {
        "imagenet": Offer("imagenet", tmp_path / "data"),
        "scratch": Offer("scratch", tmp_path / "scratch", writable=True),
    }
    async with (
        agent_rig(tmp_path, offers=offers) as rig,
        rig.trust.channel("srv0", rig.address) as channel,
    ):
        yield Caller(rig, agent_pb2_grpc.AgentStub(channel))


def after(directory: Path) -> None:
    """Make it a minute after a directory was changed, by the kernel's date."""
    now = clock.current()
    assert isinstance(now, VirtualClock)
    now.step(directory.stat().st_ctime + 60 - now.time())


async def test_volumes_are_listed_with_the_data_of_their_owners(
    call: Caller, tmp_path: Path
) -> None:
    after(tmp_path)
    assert not (await call.start(JOB)).faults
    found = {v.name: v for v in (await call("Volumes", pb.VolumesRequest())).volumes}
    assert set(found) == {"imagenet", "scratch"}
    assert (found["imagenet"].read_only, found["scratch"].read_only) == (True, False)
    for volume in found.values():
        assert not volume.problem
        assert volume.filesystem
        assert 0 < volume.free_bytes <= volume.total_bytes
    (data,) = found["scratch"].data
    assert (data.scope, data.owner, data.uid) == (pb.SCOPE_JOB, "vision.red", DEFAULT_ID)
    assert (data.quota_bytes, list(data.jobs)) == (1 << 20, ["red"])
    assert not data.HasField("bytes")
    assert 0 < data.created_at <= data.used_at


async def test_data_is_removed_after_its_job(call: Caller) -> None:
    await call.start(JOB)
    code, text = await call.refusal("RemoveData", DATA)
    assert code is grpc.StatusCode.ABORTED
    assert "job red uses the data of vision.red" in text
    await call("Stop", pb.StopRequest(job="red"))
    assert (await call("RemoveData", DATA)).removed
    assert not (await call("RemoveData", DATA)).removed


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (pb.RemoveDataRequest(volume="scratch"), grpc.StatusCode.INVALID_ARGUMENT),
        (
            pb.RemoveDataRequest(volume="scratch", scope=pb.SCOPE_JOB, owner="../data"),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            pb.RemoveDataRequest(volume="imagenet", scope=pb.SCOPE_JOB, owner="vision.red"),
            grpc.StatusCode.NOT_FOUND,
        ),
    ],
)
async def test_what_cannot_be_removed(
    call: Caller, request_: pb.RemoveDataRequest, code: grpc.StatusCode
) -> None:
    assert (await call.refusal("RemoveData", request_))[0] is code


async def test_an_unknown_scope_is_refused(call: Caller) -> None:
    """A newer controller may have one; it must not become the volume as a whole."""
    newer = pb.VolumeMount(volume="scratch", path="/scratch", scope=9, owner="vision")  # type: ignore[arg-type]
    message = rank_message(call.rig.spec(0, *SLEEP))
    message.volumes.append(newer)
    code, text = await call.refusal("Start", pb.StartRequest(ranks=[message]))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "scope 9 is unknown" in text


async def test_only_the_newest_controller_removes_data_and_every_one_lists(call: Caller) -> None:
    await call.start(JOB)
    await call("Stop", pb.StopRequest(job="red"))
    old = ((TERM_KEY, "4"),)
    await call.stub.Volumes(pb.VolumesRequest(), timeout=60, metadata=old)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call.stub.RemoveData(DATA, timeout=60, metadata=old)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_rank_whose_volume_is_missing_does_not_hinder_the_others(call: Caller) -> None:
    other = rank_message(call.rig.spec(1, *SLEEP))
    message = rank_message(call.rig.spec(0, *SLEEP))
    message.volumes.add(volume="none", path="/data", read_only=True)
    reply = await call("Start", pb.StartRequest(ranks=[message, other]))
    assert [(f.code, f.object) for f in reply.faults] == [("not_found", "ll-red-0-1")]
    assert [r.rank for r in reply.ranks] == [1]


async def test_a_rank_started_again_with_other_volumes_is_a_conflict(call: Caller) -> None:
    assert not (await call.start(JOB)).faults
    assert not (await call.start(JOB)).faults
    for reply in (await call.start(), await call.start(JOB, uid=5000)):
        assert [fault.code for fault in reply.faults] == ["conflict"]
