"""Two volumes on a real file system, and an agent's view of them without an engine."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentlink.ranks import RankSpec
from agentlink.values import DataKey, Scope, VolumeMount
from container_mgr.users import RankUser
from container_mgr.values import BoundVolume, Container
from container_mgr.volumes.offers import Offer
from container_mgr.volumes.records import DirectoryRecord
from container_mgr.volumes.volumes import Volumes
from tests.unit.container_mgr.specs import GOOD

ME = RankUser(os.geteuid(), os.getegid())
JOB = VolumeMount("scratch", "/scratch", scope=Scope.JOB, owner="vision.red", quota_bytes=10_000)
PROJECT = replace(JOB, scope=Scope.PROJECT, owner="vision")
KEY = DataKey("scratch", Scope.JOB, "vision.red")


@dataclass
class Place:
    """Two volumes, and an agent's view of them that can be made again."""

    directory: Path
    now: float = 1000.0
    containers: list[Container] = field(default_factory=list)

    @property
    def scratch(self) -> Path:
        return self.directory / "scratch"

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Volumes]:
        volumes = Volumes(
            {
                "data": Offer("data", self.directory / "data"),
                "scratch": Offer("scratch", self.scratch, writable=True),
            },
            clock=lambda: self.now,
        )
        await volumes.recover()
        try:
            yield volumes
        finally:
            volumes.close()

    async def listed(self) -> Sequence[Container]:
        return self.containers


def spec(*mounts: VolumeMount) -> RankSpec:
    return replace(GOOD, volumes=mounts)


def container(*mounts: VolumeMount, state: str = "running", job: str = "red") -> Container:
    key = replace(GOOD.key, job=job)
    return Container("id", key, "gpu0", "", GOOD.nic, None, state, volumes=mounts)


async def bound(volumes: Volumes, *mounts: VolumeMount) -> tuple[BoundVolume, ...]:
    return await volumes.bind(spec(*mounts), ME)


async def records_of(
    volumes: Volumes, containers: Sequence[Container] = ()
) -> dict[str, DirectoryRecord]:
    facts = {f.name: f for f in await volumes.facts(containers)}
    return {data.record.owner: data.record for data in facts["scratch"].data}
