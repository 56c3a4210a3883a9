"""The calls about checkpoints: who holds parts, and who moves them, answer to the controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import grpc
import structlog

from agentlink.checkpoints import MAX_FAULTS
from base import clock
from container_mgr.checkpoints.contract import Holder, Transfers
from container_mgr.hardware.inventory import Inventory
from container_mgr.rpc import checkpoint_messages as messages
from container_mgr.rpc.calls import RunningChanges, refuse
from container_mgr.rpc.messages import fault_message
from container_mgr.values import AgentError
from protos import agent_pb2 as pb
from protos import agent_pb2_grpc

PROGRESS_S = 0.2
"""Between two messages about a fetch."""
MAX_VERIFICATIONS = 4
"""At a time: each reads whole checkpoints."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_T = TypeVar("_T")

_log = structlog.get_logger("container_mgr.rpc.checkpoints")


class CheckpointCalls(agent_pb2_grpc.AgentServicer):
    """Answers the controller's calls about checkpoints. No message has the key of a job."""

    def __init__(
        self,
        inventory: Inventory,
        *,
        checkpoints: Holder | None,
        transfers: Transfers | None,
    ) -> None:
        """Without ``checkpoints`` and ``transfers`` each call is UNIMPLEMENTED."""
        self._inventory = inventory
        self._changes = RunningChanges()
        self._holder = checkpoints
        self._transfers = transfers
        self._verifications = 0

    async def Holdings(  # noqa: N802
        self, request: pb.HoldingsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.HoldingsBatch]:
        """Stream what this server holds: the first message describes the server itself."""
        holder, transfers = await self._halves(context)
        yield pb.HoldingsBatch(transfer_port=transfers.port, boot_id=_boot_id())
        async for news in holder.news():
            for batch in messages.holdings_batches(news):
                batch.transfer_port, batch.boot_id = transfers.port, _boot_id()
                yield batch

    async def Keep(  # noqa: N802
        self, request: pb.KeepRequest, context: grpc.aio.ServicerContext
    ) -> pb.KeepReply:
        """Queue copies, parities and writes to stores."""
        _, transfers = await self._halves(context)

        async def keep() -> list[AgentError]:
            folder = messages.folder_of(request.folder)
            keeps = await asyncio.to_thread(messages.keeps_of, request)
            return await transfers.keep(folder, keeps, request.pace_bps)

        faults = await self._change(context, keep())
        for fault in faults:
            _log.warning("not kept", code=fault.code, object=fault.obj, reason=fault.message)
        return pb.KeepReply(faults=[fault_message(f) for f in faults[:MAX_FAULTS]])

    async def CloseStep(  # noqa: N802
        self, request: pb.CloseStepRequest, context: grpc.aio.ServicerContext
    ) -> pb.CloseStepReply:
        """Sum a step that awaited its coordinator."""
        holder, _ = await self._halves(context)

        async def close() -> None:
            folder = messages.folder_of(request.folder)
            await holder.close_step(folder, messages.step_of(request))

        await self._change(context, close())
        return pb.CloseStepReply()

    async def Fetch(  # noqa: N802
        self, request: pb.FetchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.FetchProgress]:
        """Put parts where ranks will start. An equal request joins a fetch that runs."""
        _, transfers = await self._halves(context)
        inventory = self._inventory
        try:
            folder, key, gets = await asyncio.to_thread(
                messages.fetch_of, request, inventory.facts, inventory.endpoints
            )
            told_at = clock.monotonic() - PROGRESS_S
            async for progress in transfers.fetch(folder, key, gets):
                if progress.done or clock.monotonic() >= told_at + PROGRESS_S:
                    told_at = clock.monotonic()
                    yield messages.progress_message(progress)
        except AgentError as error:
            await refuse(context, error)

    async def DropSteps(  # noqa: N802
        self, request: pb.DropStepsRequest, context: grpc.aio.ServicerContext
    ) -> pb.DropStepsReply:
        """Remove steps."""
        holder, _ = await self._halves(context)

        async def drop() -> None:
            folder = messages.folder_of(request.folder)
            await holder.drop(folder, messages.drops_of(request))

        await self._change(context, drop())
        return pb.DropStepsReply()

    async def VerifySteps(  # noqa: N802
        self, request: pb.VerifyStepsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.VerifyBatch]:
        """Read parts again."""
        holder, _ = await self._halves(context)
        if self._verifications >= MAX_VERIFICATIONS:
            text = f"{MAX_VERIFICATIONS} calls read checkpoints of this server already"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._verifications += 1
        try:
            folder = messages.folder_of(request.folder)
            named = request.HasField("step")
            key = messages.key_of(request.step, folder) if named else None
            async for verified in holder.verify(folder, key):
                for batch in messages.verified_batches(verified):
                    yield batch
        except AgentError as error:
            await refuse(context, error)
        finally:
            self._verifications -= 1

    async def ForgetCheckpoints(  # noqa: N802
        self, request: pb.ForgetCheckpointsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ForgetCheckpointsReply:
        """Remove all of a job's folders."""
        holder, _ = await self._halves(context)

        async def forget() -> bool:
            return await holder.forget(messages.folder_of(request.folder))

        removed = await self._change(context, forget())
        return pb.ForgetCheckpointsReply(removed=removed)

    async def _halves(self, context: grpc.aio.ServicerContext) -> tuple[Holder, Transfers]:
        if self._holder is None or self._transfers is None:
            text = "this agent keeps no checkpoints"
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)
            raise AssertionError(text)  # abort() never returns
        return self._holder, self._transfers

    async def _change(self, context: grpc.aio.ServicerContext, work: Awaitable[_T]) -> _T:
        try:
            return await self._changes.kept(work)
        except AgentError as error:
            await refuse(context, error)
            raise  # abort() never returns


@lru_cache(1)
def _boot_id() -> str:
    """Return what changes with every start of this server's machine."""
    return _BOOT_ID.read_text(encoding="ascii").strip()
