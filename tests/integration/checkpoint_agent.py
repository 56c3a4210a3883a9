"""An agent's ranks and checkpoints on a real engine, in this process or in one that is killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agentlink.checkpoints import Holding
from agentlink.ranks import RankCheckpoint, RankKey, RankSpec
from agentlink.values import NicSpec, RankLimits
from container_mgr.checkpoints.holder import DiskHolder
from container_mgr.docker.arguments import ContainerLimits, Host
from container_mgr.docker.engine import DockerHost
from container_mgr.fence import Fence
from container_mgr.hardware.inventory import Inventory
from container_mgr.hardware.nic import Nics
from container_mgr.ranks.ranks import Ranks
from container_mgr.values import Container, ServerFacts
from container_mgr.volumes.volumes import Volumes
from tests.integration.agent_parts import IMAGE, NETNS, NICS

SERVER = "srv0"
MEMORY = 64 << 20


@dataclass
class Agent:
    """What an agent has of ranks and checkpoints, and what it tells."""

    ranks: Ranks
    checkpoints: DiskHolder
    engine: DockerHost
    told: list[Holding] = field(default_factory=list)

    async def listen(self) -> None:
        async for news in self.checkpoints.news():
            self.told += news.holdings

    async def sample(self) -> None:
        while True:
            self.ranks.sample()
            await asyncio.sleep(0.1)

    async def start(self, *specs: RankSpec) -> Container:
        outcome = await self.ranks.start(specs)
        if outcome.faults:
            raise outcome.faults[0]
        return outcome.containers[0]

    async def output(self, container: Container) -> list[str]:
        """Wait for a container's end; return its output."""
        found = await self.engine.inspect(container.key.container)
        while found is not None and found.alive:
            await asyncio.sleep(0.05)
            found = await self.engine.inspect(container.key.container)
        assert found is not None
        text = await asyncio.to_thread(Path(found.log_path).read_text, encoding="utf-8")
        return [line.split('"log":"', 1)[1].split("\\n", 1)[0] for line in text.splitlines()]


@asynccontextmanager
async def agent(docker_host: str, directory: Path) -> AsyncIterator[Agent]:
    engine = DockerHost(docker_host, 30)
    checkpoints = DiskHolder(directory / "checkpoints")
    ranks = Ranks(
        engine=engine,
        nics=Nics(SERVER, NETNS),
        inventory=Inventory(None, ServerFacts(4, 8 << 30)),
        host=Host(SERVER, "/ll-test", directory / "entry", ContainerLimits(MEMORY)),
        fence=Fence(directory / "term"),
        volumes=Volumes({}),
        checkpoints=checkpoints,
        state_dir=directory,
    )
    await checkpoints.recover()
    await ranks.recover()
    one = Agent(ranks, checkpoints, engine)
    listening = asyncio.create_task(one.listen())
    sampling = asyncio.create_task(one.sample())
    try:
        yield one
    finally:
        sampling.cancel()
        await ranks.close()
        await checkpoints.close()
        await listening
        engine.close()


def spec(
    number: int, script: str, checkpoint: RankCheckpoint | None, *, job: str = "red", epoch: int = 1
) -> RankSpec:
    return RankSpec(
        key=RankKey(job, number, epoch),
        endpoint=f"gpu{number}",
        image=IMAGE,
        command=("sh", "-c", script),
        nic=NicSpec(NICS[number], f"10.77.9.{number + 1}", 24, f"02:77:00:00:09:{number + 1:02x}"),
        limits=RankLimits(memory_bytes=MEMORY),
        checkpoint=checkpoint,
    )


async def until_killed(docker_host: str, directory: Path) -> None:
    async with agent(docker_host, directory):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(until_killed(sys.argv[1], Path(sys.argv[2])))
