"""Connections to agents: which agents the controller trusts, and what an agent may report.

A certificate names the server of an agent; the name is checked, the address is not. Reports are
checked against the site: a server may report its own endpoints only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import grpc

from base.addresses import split_address
from pki import Credentials, agent_name, why_refused
from protos import agent_pb2 as pb

_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
)


class AgentTrust:
    """Opens channels: secure ones if the controller has ``credentials``."""

    def __init__(self, credentials: Credentials | None) -> None:
        self._credentials = credentials

    @property
    def secure(self) -> bool:
        """True when agents must show a certificate."""
        return self._credentials is not None

    def channel(self, server: str, address: str) -> grpc.aio.Channel:
        """Return a channel to the agent of ``server``."""
        mine = self._credentials
        if mine is None:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        secure = grpc.ssl_channel_credentials(mine.ca, mine.key, mine.certificate)
        name = ("grpc.ssl_target_name_override", agent_name(server))
        return grpc.aio.secure_channel(address, secure, options=(*_OPTIONS, name))

    async def why_refused(self, server: str, address: str) -> str | None:
        """Return why TLS with the agent fails; None when it does not fail."""
        if self._credentials is None:
            return None
        host, port = split_address(address)
        name = agent_name(server)
        return await asyncio.to_thread(why_refused, host, port, self._credentials, name)


MAX_ENTRIES = 1024
"""Per kind and reply; a server has far fewer endpoints."""


def too_long(reply: pb.RanksReply) -> str | None:
    """Return which list of ``reply`` is longer than possible; None when none is."""
    for what, entries in (
        ("ranks", reply.ranks),
        ("faults", reply.faults),
        ("endpoints", reply.health),
    ):
        if len(entries) > MAX_ENTRIES:
            return f"{len(entries)} {what}"
    return None


def foreign(reply: pb.RanksReply, own: Collection[str]) -> str | None:
    """Return an endpoint in ``reply`` that is not the server's ``own``. Pure."""
    told = [*(rank.endpoint for rank in reply.ranks), *(h.endpoint for h in reply.health)]
    return next((f"endpoint {name[:80]}" for name in told if name not in own), None)
