"""An agent service in this process with mutual TLS, over fakes, and engines that call it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from agentlink.ranks import RankKey, RankSpec
from agentlink.values import NicSpec
from container_mgr.checkpoints.holder import DiskHolder
from container_mgr.docker.arguments import ContainerLimits, Host
from container_mgr.fence import Fence
from container_mgr.hardware.inventory import Inventory
from container_mgr.images.kept import KeepPolicy, KeptImages
from container_mgr.images.pulls import Pulls
from container_mgr.ranks.ranks import Ranks
from container_mgr.rpc.gate import TermGate
from container_mgr.rpc.service import AgentService
from container_mgr.scopes.scopes import Scopes
from container_mgr.values import ServerFacts
from container_mgr.volumes.offers import Offer
from container_mgr.volumes.volumes import Volumes
from controller.devices.agents.engine import AgentEngine
from controller.devices.agents.trust import AgentTrust
from pki import CONTROLLER, Authority, Credentials
from protos import agent_pb2_grpc
from tests.parts.agent.checkpoints import FakeHolder, FakeTransfers
from tests.parts.agent.commands import FakeCommandGroups
from tests.parts.agent.docker import IMAGE, FakeDocker, FakeNics


def now() -> datetime:
    return datetime.now(UTC)


def raw(directory: Path, name: str) -> Credentials:
    """Read a daemon's files without the daemon's checks."""
    ca, cert, key = ((directory / f).read_bytes() for f in ("ca.pem", "cert.pem", "key.pem"))
    return Credentials(name, directory, ca, cert, key, now())


@dataclass
class AgentRig:
    """The agent of srv0 with four endpoints, and the engine of its controller."""

    address: str
    engine: AgentEngine
    docker: FakeDocker
    nics: FakeNics
    ranks: Ranks
    fence: Fence
    authority: Authority
    directory: Path
    trust: AgentTrust
    """The controller's."""
    holder: FakeHolder
    transfers: FakeTransfers
    groups: FakeCommandGroups
    restart: Callable[[], Awaitable[None]]
    """Ends the agent's service and all its streams, and serves again at the same address."""

    def spec(self, rank: int, *command: str, job: str = "red", epoch: int = 1) -> RankSpec:
        return RankSpec(
            key=RankKey(job, rank, epoch),
            endpoint=f"gpu{rank}",
            server="srv0",
            image=IMAGE,
            command=command,
            nic=NicSpec(
                f"e-gpu{rank}", f"10.77.0.{rank + 1}", 24, f"02:77:00:00:00:{rank + 1:02x}"
            ),
        )

    @contextlib.asynccontextmanager
    async def controller(self, credentials: Credentials | None) -> AsyncIterator[AgentEngine]:
        """Yield the engine of a controller with these certificates."""
        engine = AgentEngine({"srv0": self.address}, trust=AgentTrust(credentials))
        try:
            yield engine
        finally:
            await engine.close()


def agent_service(
    docker: FakeDocker, ranks: Ranks, inventory: Inventory, pulled: Path, **halves: Any
) -> AgentService:
    """Return the service of srv0; ``pulled`` is the file of the images that it has pulled.

    ``halves`` are those of checkpoints, ``checkpoints`` and ``transfers``, and ``scopes``.
    """
    kept = KeptImages(docker, pulled, KeepPolicy())  # type: ignore[arg-type]
    pulls = Pulls(docker, kept)  # type: ignore[arg-type]
    return AgentService("srv0", docker, ranks, inventory, pulls=pulls, kept=kept, **halves)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def agent_rig(
    directory: Path,
    shown: Path | None = None,
    offers: Mapping[str, Offer] | None = None,
    scopes: Scopes | None = None,
    **inventory_options: Any,
) -> AsyncIterator[AgentRig]:
    """Serve as srv0 on a free port, with a certificate of the authority or with that in ``shown``.

    The authority's directory is ``ca`` below ``directory``. ``offers`` are the agent's volumes,
    ``scopes`` what it may freeze of another scheduler; ``inventory_options`` go to Inventory.
    """
    authority = Authority.create(directory / "ca", "test", now=now())
    authority.issue_agent("srv0", directory / "srv0", now=now())
    authority.issue_controller(directory / "controller", now=now())
    mine = raw(shown or directory / "srv0", "srv0")
    trust = AgentTrust(raw(directory / "controller", CONTROLLER))
    logs = directory / "containers"
    logs.mkdir(parents=True)
    docker = FakeDocker(logs)
    nics = FakeNics({f"e-gpu{n}": "" for n in range(4)})
    home = directory / "agent"
    inventory = Inventory(None, ServerFacts(cores=4, memory_bytes=8 << 30), **inventory_options)
    fence = Fence(home / "term")
    volumes = Volumes(offers or {})
    checkpoints = DiskHolder(home / "checkpoints")
    holder = FakeHolder()
    transfers = FakeTransfers(holder)
    groups = FakeCommandGroups(docker.proc)
    ranks = Ranks(
        engine=docker,  # type: ignore[arg-type]
        nics=nics,  # type: ignore[arg-type]
        inventory=inventory,
        host=Host("srv0", "/ll-test", home / "entry", ContainerLimits(1 << 30)),
        fence=fence,
        volumes=volumes,
        checkpoints=checkpoints,
        state_dir=home,
        transfers=transfers,  # type: ignore[arg-type]
        command_groups=groups,
        proc=docker.proc,
    )
    await checkpoints.recover()
    await ranks.recover()
    await volumes.recover()
    service = agent_service(
        docker,
        ranks,
        inventory,
        home / "images.json",
        checkpoints=holder,
        transfers=transfers,
        scopes=scopes,
    )

    async def serve(address: str) -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server(interceptors=[TermGate(fence)])
        agent_pb2_grpc.add_AgentServicer_to_server(service, server)
        port = server.add_secure_port(
            address,
            grpc.ssl_server_credentials(
                [(mine.key, mine.certificate)], root_certificates=mine.ca, require_client_auth=True
            ),
        )
        await server.start()
        return server, port

    server, port = await serve("127.0.0.1:0")
    address = f"127.0.0.1:{port}"

    async def restart() -> None:
        nonlocal server
        await server.stop(0)
        server, _ = await serve(address)

    engine = AgentEngine({"srv0": address}, trust=trust)
    try:
        yield AgentRig(
            address,
            engine,
            docker,
            nics,
            ranks,
            fence,
            authority,
            directory,
            trust,
            holder,
            transfers,
            groups,
            restart,
        )
    finally:
        await engine.close()
        await server.stop(0)
        await ranks.close()
        await checkpoints.close()
        volumes.close()
        docker.close()
