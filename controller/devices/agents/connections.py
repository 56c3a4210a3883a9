"""Connections to the agents of a site: calls as the controller of our term, and who answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Set
from dataclasses import replace
from typing import Any, TypeVar

import grpc
import structlog

from base.addresses import split_address
from controller.devices.agents.messages import rpc_fault
from controller.devices.agents.trust import AgentTrust
from controller.devices.engine import EngineError, EngineFault, Fenced
from protos import agent_pb2_grpc

BACKOFF_S = (0.5, 10.0)
"""Between two tries to read a stream of a lost server: the shortest wait, and the longest."""
_TERM_KEY = "lightloom-term"
_T = TypeVar("_T")

_log = structlog.get_logger("controller.agents")


class AgentConnections:
    """One channel to each agent. Belongs to one event loop."""

    def __init__(
        self,
        agents: Mapping[str, str],
        endpoints: Mapping[str, Collection[str]] | None,
        trust: AgentTrust,
    ) -> None:
        """Take server -> ``host:port``, and the endpoints of each; None believes every report."""
        self._agents = dict(agents)
        self._endpoints = endpoints
        self._trust = trust
        self._channels = {
            server: trust.channel(server, address) for server, address in agents.items()
        }
        self._stubs: dict[str, Any] = {
            server: agent_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]
            for server, channel in self._channels.items()
        }
        self._term = 0
        self.told: set[str] = set()
        """Servers that know our term, or refuse it for good."""
        self.liars: dict[str, str] = {}
        """Servers that are not trusted any more, and why."""
        self._diagnoses: dict[str, asyncio.Task[None]] = {}
        self._why: dict[str, str] = {}
        self._reachable = dict.fromkeys(agents, False)

    async def close(self) -> None:
        """Close all channels."""
        for task in self._diagnoses.values():
            task.cancel()
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    @property
    def servers(self) -> Set[str]:
        """The servers of the site."""
        return self._stubs.keys()

    @property
    def term(self) -> int:
        """The term of this controller."""
        return self._term

    def command(self, term: int) -> None:
        """Call as the controller of this term; no server knows it yet."""
        self._term = term
        self.told.clear()

    def reachable(self) -> Mapping[str, bool]:
        """Return for each server whether it answered the last call, and is trusted."""
        return {s: answers and s not in self.liars for s, answers in self._reachable.items()}

    def silent(self) -> set[str]:
        """Return the servers that did not answer the last call."""
        return {server for server, answers in self._reachable.items() if not answers}

    def host(self, server: str) -> str:
        """Return the host of a server's agent. Raises EngineError for a server of no site."""
        self.check(server)
        return split_address(self._agents[server])[0]

    def check(self, server: str) -> None:
        """Raise EngineError for a server that the site does not have."""
        if server not in self._stubs:
            text = "the site has no such server"
            raise EngineError([EngineFault("not_found", f"server/{server}", text)])

    def owns(self, server: str, endpoint: str) -> bool:
        """Return whether an endpoint is one of the server's."""
        return self._endpoints is None or endpoint in self._endpoints.get(server, ())

    def invoke(self, server: str, method: str, request: Any, limit_s: float | None) -> Any:
        """Begin one call, as the controller of our term; the caller awaits or reads it.

        A message that protobuf cannot read is None.
        """
        metadata = ((_TERM_KEY, str(self._term)),)
        return getattr(self._stubs[server], method)(request, timeout=limit_s, metadata=metadata)

    async def ask(self, server: str, method: str, request: Any, limit_s: float) -> Any:
        """Make one call and return its reply. Raises EngineError, and Fenced.

        It shows whether the server answers.
        """
        try:
            reply = await self.invoke(server, method, request, limit_s)
        except grpc.aio.AioRpcError as error:
            fault = rpc_fault(server, error)
            if fault.code == "unavailable":
                self._diagnose(server)
                if not self._trust.secure:
                    fault = replace(fault, hint="agents take mutual TLS only: --agent-tls DIR")
                if server in self._why:
                    hint = "see `lightloom pki`: certificates of one authority, not expired?"
                    fault = EngineFault("forbidden", fault.obj, self._why[server], hint)
            self.note_answer(server, fault.code not in ("unavailable", "timeout", "forbidden"))
            raise _error_of(error, fault) from error
        self.note_answer(server, True)
        return read(server, reply)

    async def ask_storage(self, server: str, method: str, request: Any, limit_s: float) -> Any:
        """Make one call that waits for a disk or is not known to each agent. Raises EngineError.

        When it fails, that says nothing about the agent: observations show whether it answers.
        """
        try:
            return read(server, await self.invoke(server, method, request, limit_s))
        except grpc.aio.AioRpcError as error:
            raise _error_of(error, rpc_fault(server, error)) from error

    async def stream(
        self, server: str, method: str, request: Any, limit_s: float | None
    ) -> AsyncGenerator[Any]:
        """Read the messages of one call; close it to end the call. Raises EngineError, Fenced."""
        call = self.invoke(server, method, request, limit_s)
        try:
            async for message in call:
                yield read(server, message)
        except grpc.aio.AioRpcError as error:
            raise _error_of(error, rpc_fault(server, error)) from error
        finally:
            call.cancel()

    def _diagnose(self, server: str) -> None:
        """Find out whether certificates are the reason that a server cannot be reached."""
        if self._trust.secure and server not in self._diagnoses:

            async def ask() -> None:
                why = await self._trust.why_refused(server, self._agents[server])
                if why is None:
                    self._why.pop(server, None)
                elif self._why.get(server) != why:
                    self._why[server] = why
                    _log.error("agent refused", server=server, reason=why)

            task = self._diagnoses[server] = asyncio.create_task(ask())
            task.add_done_callback(lambda _: self._diagnoses.pop(server))

    def note_answer(self, server: str, answered: bool) -> None:
        """Learn whether a server answers."""
        if self._reachable[server] != answered:
            _log.info("agent answers" if answered else "agent lost", server=server)
        self._reachable[server] = answered
        if answered:
            self._why.pop(server, None)
        else:
            self.told.discard(server)  # its agent may restart and forget the term


def read(server: str, message: _T | None) -> _T:
    """Return a message. Raises EngineError for one that protobuf could not read."""
    if message is None:
        text = "its agent sent a message that cannot be read"
        raise EngineError([EngineFault("failed", f"server/{server}", text)])
    return message


def _error_of(error: grpc.aio.AioRpcError, fault: EngineFault) -> EngineError:
    fenced = error.code() is grpc.StatusCode.FAILED_PRECONDITION
    return (Fenced if fenced else EngineError)([fault])
