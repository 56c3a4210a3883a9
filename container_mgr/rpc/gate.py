"""Admits calls to the agent: by the name in the caller's certificate, and by the term."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from container_mgr.fence import TERM_KEY, Fence, _log
from container_mgr.values import MAX_TERM
from pki import CONTROLLER

READING = frozenset({"Describe", "ImageStatus", "Observe", "Telemetry", "Logs"})


class TermGate(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets the controller's calls through to the service, by the name in its certificate."""

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
                f"this agent obeys {CONTROLLER}, not {shown}",
            )
        term = _term_of(context)
        if term is None:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"{TERM_KEY} is a number from 0 on"
            )
            return
        if method in READING:
            return
        if term < self._fence.term:
            _log.warning("fenced", method=method, term=term, highest=self._fence.term)
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"a newer controller (term {self._fence.term}) commands this agent;"
                f" this call is of term {term}",
            )
        try:
            self._fence.raise_to(term)
        except OSError as error:
            _log.error("term not written", term=term, reason=str(error))
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, "the agent cannot write down the controller's term"
            )


def _term_of(context: Any) -> int | None:
    """Return the caller's term, 0 when it names none, None when it is no number."""
    text = dict(context.invocation_metadata() or ()).get(TERM_KEY, "0")
    if not isinstance(text, str) or not text.isdecimal() or len(text) > 19:
        return None
    return int(text) if int(text) <= MAX_TERM else None
