"""The calls about scopes: processes that another scheduler started, frozen and thawed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import grpc
import structlog

from agentlink.codec import write
from agentlink.values import ScopeEntry
from base.engines import NUMBERS
from container_mgr.rpc.calls import RunningChanges, refuse
from container_mgr.rpc.messages import fault_message
from container_mgr.scopes.scopes import Done, Scopes
from container_mgr.values import AgentError
from protos import agent_pb2 as pb
from protos import agent_pb2_grpc

MAX_SETTLE_S = 1.0
MAX_FAULTS = 16

# Named here, where no call of the service has the name of the class.
_Work = Callable[[Scopes], Awaitable[Done]]

_log = structlog.get_logger("container_mgr.rpc.scopes")


class ScopeCalls(agent_pb2_grpc.AgentServicer):
    """Answers the controller's calls about scopes."""

    def __init__(self, scopes: Scopes | None, changes: RunningChanges) -> None:
        """Without ``scopes``, those of a server whose operator has not allowed it."""
        self._scopes = scopes
        self._scope_changes = changes

    async def FreezeScope(  # noqa: N802
        self, request: pb.FreezeScopeRequest, context: grpc.aio.ServicerContext
    ) -> pb.ScopeReply:
        """Freeze the processes of a scope."""
        settle_s = min(MAX_SETTLE_S, max(0.0, request.settle_s))
        return await self._done(
            "frozen", request.scope, lambda s: s.freeze(request.scope, settle_s)
        )

    async def ThawScope(  # noqa: N802
        self, request: pb.ThawScopeRequest, context: grpc.aio.ServicerContext
    ) -> pb.ScopeReply:
        """Thaw the processes of a scope."""
        return await self._done("thawed", request.scope, lambda s: s.thaw(request.scope))

    async def Scopes(  # noqa: N802
        self, request: pb.ScopesRequest, context: grpc.aio.ServicerContext
    ) -> pb.ScopesReply:
        """List the scopes of this server."""
        if self._scopes is None:
            return pb.ScopesReply()
        try:
            states = await self._scopes.states()
        except AgentError as error:
            await refuse(context, error)
            raise  # abort() never returns
        entries = [write(pb.ScopeEntry, ScopeEntry(*entry)) for entry in states.items()]
        return pb.ScopesReply(observes=True, scopes=entries)

    async def _done(self, verb: str, scope: str, work: _Work) -> pb.ScopeReply:
        try:
            if self._scopes is None:
                raise AgentError(
                    "forbidden",
                    f"scope/{scope[:80]}",
                    "the agent leaves processes of other schedulers alone",
                    f"start it with --observe {'|'.join(NUMBERS)}",
                )
            done = await self._scope_changes.kept(work(self._scopes))
            _log.info(verb, scope=scope, cgroups=done.cgroups, settled=done.settled)
        except AgentError as error:
            done = Done(0, (error,))
        for fault in done.faults:
            _log.warning("fault", code=fault.code, object=fault.obj, reason=fault.message)
        return pb.ScopeReply(
            faults=[fault_message(fault) for fault in done.faults[:MAX_FAULTS]],
            settled=done.settled,
        )
