"""The controller's credentials towards agents, read once at the start."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from base.addresses import split_address
from controller.base.addresses import is_loopback
from controller.base.errors import ErrorCode, ServiceError
from controller.devices.agents.trust import AgentTrust
from pki import CONTROLLER, Credentials, TrustError
from sitefile import CabledSite


def read_trust(site: CabledSite, directory: Path | None) -> AgentTrust:
    """Read ``directory`` of ``lightloom pki issue controller``. ServiceError.

    Without a directory the agents must be on this machine, and they refuse all orders.
    """
    if directory is None:
        for server in site.servers:
            if not is_loopback(split_address(server.agent)[0]):
                raise ServiceError(
                    "forbidden",
                    f"the agent of {server.name} is remote ({server.agent}) and TLS is off",
                    object=f"server/{server.name}",
                    hint="lightloom pki issue controller --out DIR, then --agent-tls DIR",
                )
        return AgentTrust(None)
    try:
        return AgentTrust(Credentials.load(directory, CONTROLLER, now=datetime.now(UTC)))
    except TrustError as error:
        code: ErrorCode = "forbidden" if error.code == "forbidden" else "failed"
        raise ServiceError(code, error.message, object=error.object, hint=error.hint) from error
