"""An agent behind mutual TLS, over fakes; and engines of controllers with whatever certificates."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc

from container_mgr.config import Host, Limits
from container_mgr.fence import Fence, Gate
from container_mgr.kit import Kit
from container_mgr.ranks import Ranks
from container_mgr.service import AgentService
from container_mgr.values import ServerFacts
from controller.agent_engine import AgentEngine
from controller.agent_trust import AgentTrust
from pki import Authority, Credentials
from protos import agent_pb2_grpc
from tests.contract.engine_fakes import FakeDocker, FakeNics


def now() -> datetime:
    return datetime.now(UTC)


def raw(directory: Path, name: str) -> Credentials:
    """Read a daemon's files without the checks that a daemon makes."""
    ca, cert, key = ((directory / f).read_bytes() for f in ("ca.pem", "cert.pem", "key.pem"))
    return Credentials(name, directory, ca, cert, key, now())


@dataclass
class TlsRig:
    """The agent of srv0."""

    address: str
    authority: Authority
    directory: Path
    fence: Fence
    ranks: Ranks

    @contextlib.asynccontextmanager
    async def engine(self, credentials: Credentials | None) -> AsyncIterator[AgentEngine]:
        engine = AgentEngine({"srv0": self.address}, trust=AgentTrust(credentials))
        try:
            yield engine
        finally:
            await engine.close()


@contextlib.asynccontextmanager
async def tls_rig(directory: Path, shown: Path | None = None) -> AsyncIterator[TlsRig]:
    """Serve as srv0 with a certificate of the authority, or with that in ``shown``."""
    authority = Authority.create(directory / "ca", "test", now=now())
    authority.issue_agent("srv0", directory / "srv0", now=now())
    mine = raw(shown or directory / "srv0", "srv0")
    (directory / "logs").mkdir()
    docker, nics = FakeDocker(directory / "logs"), FakeNics({"e-gpu0": ""})
    kit = Kit(None, ServerFacts(4, 8 << 30))
    fence = Fence(directory / "agent" / "term")
    ranks = Ranks(
        engine=docker,  # type: ignore[arg-type]
        nics=nics,  # type: ignore[arg-type]
        kit=kit,
        host=Host("srv0", "/ll-test", directory / "agent" / "entry", Limits(1 << 30)),
        fence=fence,
        state_dir=directory / "agent",
        proc=docker.proc,
    )
    await ranks.recover()
    server = grpc.aio.server(interceptors=[Gate(fence, secured=True)])
    service = AgentService("srv0", docker, ranks, kit)  # type: ignore[arg-type]
    agent_pb2_grpc.add_AgentServicer_to_server(service, server)
    port = server.add_secure_port(
        "127.0.0.1:0",
        grpc.ssl_server_credentials(
            [(mine.key, mine.certificate)], root_certificates=mine.ca, require_client_auth=True
        ),
    )
    await server.start()
    try:
        yield TlsRig(f"127.0.0.1:{port}", authority, directory, fence, ranks)
    finally:
        await server.stop(0)
        await ranks.close()
        docker.close()
