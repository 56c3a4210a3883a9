"""A private Docker Engine, a server with two NICs, an agent on it, a controller's view of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import docker

from agentlink.ranks import RankKey, RankSpec
from agentlink.values import NicSpec, RegistryLogin
from container_mgr.daemon import AgentConfig, serve
from controller.devices.agents.engine import AgentEngine
from controller.devices.agents.trust import AgentTrust
from controller.devices.engine import ServerImage
from pki import CONTROLLER, Authority, Credentials
from testbed.engine import DockerEngine, EngineInfo
from tests.integration.tiny_image import tiny_image_tar
from tests.parts.agent.ranks import seen, until

IMAGE = "ll-tiny:test"
NETNS = "ll-tsrv"
NICS = ("ll-te0", "ll-te1")


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout


async def nics_at_home() -> bool:
    listed = await asyncio.to_thread(ip, "-n", NETNS, "-br", "link")
    return all(name in listed for name in NICS)


@dataclass
class PrivateEngine:
    """A Docker Engine with its own directories and one tiny image."""

    engine: DockerEngine
    run_dir: Path
    info: EngineInfo

    def api(self) -> contextlib.closing[docker.APIClient]:
        return contextlib.closing(docker.APIClient(self.info.host_url))

    def dockerd(self) -> int:
        # Not by its command line, which its forked processes share until they execute.
        return int((self.run_dir / "docker" / "dockerd.pid").read_text(encoding="ascii"))


@contextlib.contextmanager
def private_engine(path: str = "") -> Iterator[PrivateEngine]:
    """Run a private Docker Engine with ``path`` at the front of its PATH."""
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{path}:{before}" if path else before
    run_dir = Path(tempfile.mkdtemp(prefix="ll-agent-"))
    run_dir.chmod(0o711)  # an engine that maps users enters it as one of them
    engine = DockerEngine(run_dir, run_dir / "data", prefer_host=False, cgroup="ll-test")
    try:
        one = PrivateEngine(engine, run_dir, engine.start())
        with one.api() as api:
            name, _, tag = IMAGE.partition(":")
            api.import_image_from_data(tiny_image_tar(), repository=name, tag=tag)
        yield one
    finally:
        os.environ["PATH"] = before
        engine.stop()
        shutil.rmtree(run_dir)


@contextlib.contextmanager
def two_nics() -> Iterator[None]:
    """Make one server with two NICs, the two ends of one fiber."""
    ip("netns", "add", NETNS)
    try:
        ip("-n", NETNS, "link", "add", NICS[0], "type", "veth", "peer", "name", NICS[1])
        yield
    finally:
        ip("netns", "del", NETNS)


@dataclass
class Rig:
    """An agent that can be stopped and started again, and a controller's view of it."""

    config: AgentConfig
    engine: AgentEngine
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    async def up(self) -> None:
        self.stop.clear()
        self.task = asyncio.create_task(serve(self.config, self.stop))
        await until(self._answers, lambda ok: ok)

    async def down(self) -> None:
        self.stop.set()
        if self.task is not None:
            await self.task

    def spec(self, rank: int, *command: str, job: str = "red", epoch: int = 1) -> RankSpec:
        return RankSpec(
            key=RankKey(job, rank, epoch),
            endpoint=f"gpu{rank}",
            server=self.config.server,
            image=IMAGE,
            command=command,
            nic=NicSpec(NICS[rank], f"10.77.9.{rank + 1}", 24, f"02:77:00:00:09:{rank + 1:02x}"),
        )

    async def _answers(self) -> bool:
        if self.task is not None and self.task.done():
            self.task.result()
        await self.engine.observe()
        return self.engine.reachable()[self.config.server]


async def pulled(
    rig: Rig, image: str, login: RegistryLogin | None = None, *, refresh: bool = False
) -> ServerImage | None:
    """Let the server pull an image; return it."""
    steps = rig.engine.pull_image(rig.config.server, image, login, refresh=refresh)
    return [step async for step in steps][-1].image


@contextlib.asynccontextmanager
async def agent_rig(
    private: PrivateEngine, directory: Path, server: str = "srv0", **config: Any
) -> AsyncIterator[Rig]:
    """Run an agent with its own certificates; at the end every NIC must be back."""
    now = datetime.now(UTC)
    authority = Authority.create(directory / "ca", "test", now=now)
    authority.issue_agent(server, directory / server, now=now)
    authority.issue_controller(directory / "controller", now=now)
    given: Mapping[str, Any] = {
        "server": server,
        "listen": "127.0.0.1:7791",
        "nic_netns": NETNS,
        "docker_host": private.info.host_url,
        "state_dir": directory / "agent",
        "cgroup": "ll-test",
        "tls": directory / server,
        **config,
    }
    trust = AgentTrust(Credentials.load(directory / "controller", CONTROLLER, now=now))
    agent = AgentConfig(**given)
    one = Rig(agent, AgentEngine({server: agent.listen}, trust=trust))
    try:
        await one.up()
        try:
            yield one
        finally:
            for job in {s.job for s in await seen(one)}:
                await one.engine.stop(job, 0)
            left = server != "srv0" or await nics_at_home()
    finally:
        await one.engine.close()
        await one.down()
    assert left, "a NIC was not returned"
