"""What the calls of the service share: refusals, and changes that outlive their callers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import grpc

from container_mgr.values import AgentError

CODES = {
    "invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "not_found": grpc.StatusCode.NOT_FOUND,
    "conflict": grpc.StatusCode.ABORTED,
    "timeout": grpc.StatusCode.DEADLINE_EXCEEDED,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
    "failed": grpc.StatusCode.INTERNAL,
}
"""The status for each code of an AgentError."""

_T = TypeVar("_T")


class RunningChanges:
    """The changes that run. One completes even when its caller disconnects."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[Any]] = set()

    async def kept(self, work: Awaitable[_T]) -> _T:
        """Return what ``work`` returns. The caller's deadline cancels the call, not the work."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)


def hinted(text: str, hint: str) -> str:
    """Return a text with its hint."""
    return f"{text} ({hint})" if hint else text


async def refuse(context: grpc.aio.ServicerContext, error: AgentError) -> None:
    """Abort with an AgentError's code and words."""
    code = CODES.get(error.code, grpc.StatusCode.INTERNAL)
    await context.abort(code, hinted(str(error), error.hint))
