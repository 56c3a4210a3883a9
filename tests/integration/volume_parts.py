"""An agent that offers volumes, and what ranks ask of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from container_mgr.fence import TERM_KEY
from container_mgr.volumes.offers import Offer
from controller.devices.agents.messages import rank_message
from controller.devices.agents.trust import AgentTrust
from pki import CONTROLLER, Credentials
from protos import agent_pb2 as pb
from protos import agent_pb2_grpc
from tests.integration.agent_parts import PrivateEngine, Rig, agent_rig, two_nics
from tests.parts.agent.ranks import SLEEP, output, when_ended

UID = 5000
"""The user of a project."""


@dataclass
class VolumeRig:
    """An agent with volumes, called directly: a controller would refuse what some tests ask."""

    rig: Rig
    stub: agent_pb2_grpc.AgentStub
    directory: Path

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def scratch(self) -> Path:
        return self.directory / "scratch"

    def rank(
        self, rank: int, script: str, *volumes: pb.VolumeMount, uid: int | None = UID, **spec: Any
    ) -> pb.Rank:
        message = rank_message(self.rig.spec(rank, "sh", "-c", script, **spec))
        message.volumes.extend(volumes)
        if uid is not None:
            message.uid = message.gid = uid
        return message

    async def call(self, method: str, request: Any) -> Any:
        return await getattr(self.stub, method)(request, timeout=90, metadata=((TERM_KEY, "0"),))

    async def start(self, *ranks: pb.Rank) -> pb.RanksReply:
        return await self.call("Start", pb.StartRequest(ranks=ranks))

    async def run(self, rank: pb.Rank) -> list[str]:
        """Run one rank, and another one that keeps its fiber lit; return the output."""
        peer = rank_message(self.rig.spec(1 - rank.rank, *SLEEP, job=rank.job))
        reply = await self.start(rank, peer)
        assert not reply.faults, reply.faults
        await when_ended(self.rig, rank.rank)
        return await output(self.rig, rank.rank, rank.job)

    async def fault(self, rank: pb.Rank) -> pb.Fault:
        """Return why a rank is refused; nothing may be left of it."""
        reply = await self.start(rank)
        assert [r.state for r in reply.ranks] == []
        assert (await self.call("Observe", pb.ObserveRequest())).ranks == []
        return reply.faults[0]

    async def status(self, rank: int) -> pb.RankStatus:
        reply = await self.call("Observe", pb.ObserveRequest())
        return next(r for r in reply.ranks if r.rank == rank)

    async def volume(self, name: str) -> pb.Volume:
        reply = await self.call("Volumes", pb.VolumesRequest())
        return next(v for v in reply.volumes if v.name == name)


@contextlib.asynccontextmanager
async def volume_rig(
    private: PrivateEngine, directory: Path, *more: Offer
) -> AsyncIterator[VolumeRig]:
    """Run an agent with the volumes ``imagenet`` and ``scratch``, and more."""
    for name in ("data", "scratch"):
        (directory / name).mkdir(mode=0o755)
    (directory / "data" / "train.txt").write_text("sample\n", encoding="ascii")
    offers = (
        Offer("imagenet", directory / "data"),
        Offer("scratch", directory / "scratch", writable=True),
        *more,
    )
    with two_nics():
        async with agent_rig(private, directory, volumes=offers) as rig:
            now = datetime.now(UTC)
            trust = AgentTrust(Credentials.load(directory / "controller", CONTROLLER, now=now))
            async with trust.channel(rig.config.server, rig.config.listen) as channel:
                yield VolumeRig(rig, agent_pb2_grpc.AgentStub(channel), directory)


def imagenet(path: str = "/data", *, read_only: bool = True) -> pb.VolumeMount:
    """Ask for the data that all may read."""
    return pb.VolumeMount(volume="imagenet", path=path, read_only=read_only)


def scratch(owner: str, scope: pb.Scope = pb.SCOPE_JOB, **fields: Any) -> pb.VolumeMount:
    """Ask for a directory of the owner's."""
    return pb.VolumeMount(volume="scratch", path="/scratch", scope=scope, owner=owner, **fields)
