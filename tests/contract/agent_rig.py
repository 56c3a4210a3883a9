"""An agent service in this process, over fakes, with a controller's engine that calls it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from container_mgr.config import Host, Limits
from container_mgr.fence import Fence, Gate
from container_mgr.kit import Kit
from container_mgr.ranks import Ranks
from container_mgr.service import AgentService
from container_mgr.values import ServerFacts
from controller.agent_engine import AgentEngine
from controller.engine import RankSpec
from protos import agent_pb2_grpc
from tests.contract.engine_fakes import IMAGE, FakeDocker, FakeNics


@dataclass
class AgentRig:
    """One server with four endpoints."""

    address: str
    engine: AgentEngine
    docker: FakeDocker
    nics: FakeNics
    ranks: Ranks

    def spec(self, rank: int, *command: str, job: str = "red", epoch: int = 1) -> RankSpec:
        return RankSpec(
            job=job,
            rank=rank,
            epoch=epoch,
            endpoint=f"gpu{rank}",
            server="srv0",
            image=IMAGE,
            command=command,
            ip=f"10.77.0.{rank + 1}",
            prefix_len=24,
            mac=f"02:77:00:00:00:{rank + 1:02x}",
            nic=f"e-gpu{rank}",
        )


@contextlib.asynccontextmanager
async def agent_rig(directory: Path) -> AsyncIterator[AgentRig]:
    """Run an agent service on a free port for the time of the context."""
    logs = directory / "containers"
    logs.mkdir(parents=True)
    docker = FakeDocker(logs)
    nics = FakeNics({f"e-gpu{n}": "" for n in range(4)})
    home = directory / "agent"
    kit = Kit(None, ServerFacts(cores=4, memory_bytes=8 << 30))
    fence = Fence(home / "term")
    ranks = Ranks(
        engine=docker,  # type: ignore[arg-type]
        nics=nics,  # type: ignore[arg-type]
        kit=kit,
        host=Host("srv0", "/ll-test", home / "entry", Limits(1 << 30)),
        fence=fence,
        state_dir=home,
        proc=docker.proc,
    )
    await ranks.recover()
    server = grpc.aio.server(interceptors=[Gate(fence, secured=False)])
    service = AgentService("srv0", docker, ranks, kit)  # type: ignore[arg-type]
    agent_pb2_grpc.add_AgentServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    address = f"127.0.0.1:{port}"
    engine = AgentEngine({"srv0": address})
    try:
        yield AgentRig(address, engine, docker, nics, ranks)
    finally:
        await engine.close()
        await server.stop(0)
        await ranks.close()
        docker.close()
