"""Admits calls to the agent by the name in the caller's certificate and by the caller's term.

The interceptor wraps every method, so a new method is checked as well. Every controller may
read, and reading never raises the term; only the controller with the highest term may change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import structlog

from container_mgr.fence import TERM_KEY, Fence
from container_mgr.values import MAX_TERM
from pki import CONTROLLER

READING = frozenset(
    {"Describe", "ImageStatus", "Images", "Observe", "Telemetry", "Logs", "Volumes", "Recordings"}
    | {"Holdings", "VerifySteps", "Scopes"}
)

_log = structlog.get_logger("container_mgr.rpc.gate")


class TermGate(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Passes the calls of the newest controller to the service, and reads of every controller."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the method that is called."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method.rpartition("/")[2]
        if handler.request_streaming:

            async def duplex(requests: Any, context: Any) -> None:
                await self._admit(method, context)
                await handler.stream_stream(requests, context)

            return grpc.stream_stream_rpc_method_handler(
                duplex, handler.request_deserializer, handler.response_serializer
            )

        if handler.response_streaming:

            async def streamed(request: Any, context: Any) -> AsyncIterator[Any]:
                await self._admit(method, context)
                async for reply in handler.unary_stream(request, context):
                    yield reply

            return grpc.unary_stream_rpc_method_handler(
                streamed, handler.request_deserializer, handler.response_serializer
            )

        async def single(request: Any, context: Any) -> Any:
            await self._admit(method, context)
            return await handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(
            single, handler.request_deserializer, handler.response_serializer
        )

    async def _admit(self, method: str, context: Any) -> None:
        names = context.auth_context().get("x509_subject_alternative_name", ())
        if CONTROLLER.encode() not in names:
            shown = b", ".join(names).decode(errors="replace") or "no one"
            _log.warning("refused", method=method, caller=shown)
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"this agent accepts calls from {CONTROLLER}, not from {shown}",
            )
        term = _term_of(context)
        if term is None:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"{TERM_KEY} must be a number, 0 or more"
            )
            return
        if method in READING:
            return
        if term < self._fence.term:
            _log.warning("fenced", method=method, term=term, highest=self._fence.term)
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"a newer controller (term {self._fence.term}) commands this agent;"
                f" this call has term {term}",
            )
        try:
            self._fence.raise_to(term)
        except OSError as error:
            _log.error("term not written", term=term, reason=str(error))
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, "the agent cannot store the controller's term"
            )


def _term_of(context: Any) -> int | None:
    """Return the caller's term, 0 when it names none, None when it is not a valid term."""
    text = dict(context.invocation_metadata() or ()).get(TERM_KEY, "0")
    if not isinstance(text, str) or not text.isdecimal() or len(text) > 19:
        return None
    return int(text) if int(text) <= MAX_TERM else None
