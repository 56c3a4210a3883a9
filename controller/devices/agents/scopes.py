"""Scopes: processes that another scheduler started, frozen and thawed by the servers' agents."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from agentlink.codec import possible, read
from agentlink.values import ScopeEntry, ScopeState
from base.engines import is_key
from controller.devices.agents.connections import AgentConnections
from controller.devices.engine import EngineError, EngineFault, Fenced
from protos import agent_pb2 as pb

MAX_SCOPES = 4096
"""Of one server."""
_MAX_FAULTS = 16


class AgentScopes:
    """The part of :class:`controller.devices.engine.ExecutionEngine` that is about scopes."""

    def __init__(self, agents: AgentConnections, call_timeout_s: float) -> None:
        self._scope_agents = agents
        self._scope_timeout_s = call_timeout_s

    async def freeze_scope(
        self, scope: str, servers: Collection[str], settle_s: float = 0.0
    ) -> bool | None:
        """Freeze the processes of a scope on all its servers at once. Raises EngineError."""
        if not servers:
            text = "none of its endpoints is on a server of the site file"
            raise EngineError([EngineFault("not_found", _object(scope), text)])
        request = pb.FreezeScopeRequest(scope=scope, settle_s=settle_s)
        replies = await self._on_all("FreezeScope", scope, servers, request, settle_s)
        seen = {reply.settled if reply.HasField("settled") else None for reply in replies}
        return None if None in seen else False not in seen

    async def thaw_scope(self, scope: str, servers: Collection[str]) -> None:
        """Let the processes of a scope continue. Raises EngineError."""
        await self._on_all("ThawScope", scope, servers, pb.ThawScopeRequest(scope=scope))

    async def scopes(self, timeout_s: float) -> Mapping[str, Mapping[str, ScopeState]]:
        """Return the scopes that have processes, by server that answers and observes."""
        agents = self._scope_agents

        async def ask(server: str) -> Mapping[str, ScopeState] | None:
            # An older agent knows no scopes: observations show whether it answers.
            request = pb.ScopesRequest()
            reply = await agents.ask_storage(server, "Scopes", request, timeout_s)
            return scopes_of(reply) if reply.observes else None

        # All: a controller that has just started has heard of none yet.
        asked = sorted(agents.servers - agents.liars.keys())
        answers = await asyncio.gather(*map(ask, asked), return_exceptions=True)
        found = {}
        for server, answer in zip(asked, answers, strict=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, EngineError):
                    raise answer
            elif answer is not None:
                found[server] = answer
        return found

    async def _on_all(
        self,
        method: str,
        scope: str,
        servers: Collection[str],
        request: Any,
        margin_s: float = 0.0,
    ) -> list[pb.ScopeReply]:
        """Call all servers at the same time. Raises EngineError with the faults of all."""
        agents, limit_s = self._scope_agents, self._scope_timeout_s + margin_s

        async def ask(server: str) -> pb.ScopeReply:
            agents.check(server)
            reply: pb.ScopeReply = await agents.ask(server, method, request, limit_s)
            if server in agents.liars:
                fault = EngineFault("forbidden", f"server/{server}", agents.liars[server])
                raise EngineError([fault])
            if reply.faults:
                raise EngineError(
                    [read(EngineFault, fault) for fault in reply.faults[:_MAX_FAULTS]]
                )
            return reply

        names = sorted(servers)
        answers = await asyncio.gather(*map(ask, names), return_exceptions=True)
        if fenced := [answer for answer in answers if isinstance(answer, Fenced)]:
            raise Fenced([fault for answer in fenced for fault in answer.faults])
        replies: list[pb.ScopeReply] = []
        faults: list[EngineFault] = []
        for server, answer in zip(names, answers, strict=True):
            if isinstance(answer, EngineError):
                faults += [
                    replace(fault, obj=_object(scope), message=f"{server}: {fault.message}")
                    for fault in answer.faults
                ]
            elif isinstance(answer, BaseException):
                raise answer
            else:
                replies.append(answer)
        if faults:
            raise EngineError(faults)
        return replies


def scopes_of(reply: pb.ScopesReply) -> dict[str, ScopeState]:
    """Read the scopes of one server; skip what has no valid name or state."""
    entries = possible(partial(read, ScopeEntry), reply.scopes[:MAX_SCOPES])
    return {one.scope: one.state for one in entries if is_key(one.scope)}


def _object(scope: str) -> str:
    return f"scope/{scope}"
