"""Random partitions between two controllers, an agent and Docker; and what must hold throughout.

Calls get lost before they took effect or answered after their deadline, the agent dies and
comes back, the older controller goes on as if nothing had happened. At no moment may two
living containers share an endpoint or a NIC, and no start ends another owner's containers.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from agentlink.ranks import RankKey, RankSpec
from agentlink.values import NicSpec
from container_mgr.checkpoints.holder import DiskHolder
from container_mgr.docker.arguments import ContainerLimits, Host
from container_mgr.fence import Fence
from container_mgr.hardware.inventory import Inventory
from container_mgr.ranks.ranks import Ranks
from container_mgr.values import ServerFacts
from container_mgr.volumes.volumes import Volumes
from tests.parts.agent.docker import IMAGE, FakeContainer, FakeDocker, FakeNics

ENDPOINTS = 2
STEPS = 12
MACS = ("02:00:00:00:00:01", "02:00:00:00:00:02")
CALLS = ("create", "start", "stop", "remove", "inspect", "list")


@dataclass
class PaperContainer(FakeContainer):
    """A container without a process: thousands of runs need none."""

    def spawn(self) -> None:
        self.raw["State"] |= {"Status": "running", "Pid": os.getpid(), "StartedAt": ""}
        self.appear(os.getpid())

    def refresh(self) -> None:
        return


class PaperDocker(FakeDocker):
    """Makes paper containers."""

    container_type = PaperContainer

    def _kill(self, one: FakeContainer) -> None:
        one.raw["State"] |= {"Status": "exited", "Pid": 0, "ExitCode": 137}


def spec(job: str, endpoint: int, epoch: int) -> RankSpec:
    """A rank of ``job`` on one of the endpoints."""
    return RankSpec(
        key=RankKey(job, 0, epoch),
        endpoint=f"gpu{endpoint}",
        image=IMAGE,
        command=("true",),
        nic=NicSpec(
            f"e-gpu{endpoint}", f"10.0.0.{endpoint + 1}", 24, f"02:00:00:00:00:0{endpoint}"
        ),
    )


def living(docker: FakeDocker) -> set[str]:
    """Names of the containers that live."""
    return {name for name in docker.containers if docker.seen(name).alive}


async def run_once(seed: int, directory: Path) -> Counter[str]:
    """Play one random story; return what was counted, ``double`` and ``stolen`` above all."""
    dice = random.Random(seed)  # noqa: S311 - a story is told again by its seed
    docker = PaperDocker(directory)
    nics = FakeNics({f"e-gpu{n}": "" for n in range(ENDPOINTS)})
    inventory = Inventory(None, ServerFacts(4, 1 << 34))
    fence = Fence(directory / "term")
    counted: Counter[str] = Counter()

    def agent() -> Ranks:
        return Ranks(
            engine=docker,  # type: ignore[arg-type]
            nics=nics,  # type: ignore[arg-type]
            inventory=inventory,
            host=Host("srv0", "/ll", directory / "entry", ContainerLimits(1 << 30)),
            fence=fence,
            volumes=Volumes({}),
            checkpoints=DiskHolder(directory / "checkpoints"),
            state_dir=directory,
            proc=docker.proc,
        )

    ranks = agent()
    await ranks.recover()
    epoch = 0
    for _ in range(STEPS):
        if dice.random() < 0.4:
            (docker.lost if dice.random() < 0.5 else docker.late)[dice.choice(CALLS)] += 1
        epoch += dice.randrange(2)
        match dice.randrange(6):
            case 0:
                await ranks.close()
                docker.lost.clear()
                docker.late.clear()
                ranks = agent()
                await ranks.recover()
            case 1:
                await ranks.stop(dice.choice("ab"), 0)
            case _:
                # Both controllers at once, each for the endpoint it believes to be free.
                wanted = [
                    [spec(job, dice.randrange(ENDPOINTS), epoch)]
                    for job in dice.sample(["a", "b", "c"], 2)
                ]
                before = living(docker)
                done = await asyncio.gather(*(ranks.start(specs) for specs in wanted))
                counted["stolen"] += len(before - living(docker))
                counted["started"] += sum(len(outcome.containers) for outcome in done)
                counted["refused"] += sum(len(outcome.faults) for outcome in done)
        alive = [c for c in (docker.seen(n) for n in docker.containers) if c.alive]
        for what in ([c.endpoint for c in alive], [c.nic.name for c in alive]):
            counted["double"] += len(what) - len(set(what))
    await ranks.close()
    counted["runs"] += 1
    return counted
