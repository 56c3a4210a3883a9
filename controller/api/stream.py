"""The live stream: server-sent events, resumable, one slow reader harms nobody.

Written on ASGI itself: with hundreds of readers, what is done per reader and frame is what the
API's other answers wait for (docs/adr/0032).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated

import structlog
from fastapi import APIRouter, Header, HTTPException
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from controller.api.common import Service
from controller.api.problems import responses
from controller.feed import Reader

log = structlog.get_logger(__name__)

router = APIRouter(tags=["live"], responses=responses("unavailable"))
PING_S = 15.0
"""A reader hears something at least this often, so that proxies keep its connection."""
SEND_TIMEOUT_S = 15.0
"""A reader whose connection takes nothing for so long is cut off."""
RETRY_MS = 1000
HELLO = f": lightloom\nretry: {RETRY_MS}\n\n".encode()
PING = b": still here\n\n"


class Stream(StreamingResponse):
    """A stream whose reader may stop reading: it is cut off, and nothing is wrong with us."""

    media_type = "text/event-stream"

    def __init__(
        self,
        reader: Reader,
        *,
        ping_s: float = PING_S,
        send_timeout_s: float = SEND_TIMEOUT_S,
    ) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(_pieces(reader, ping_s), headers=headers)
        self._reader = reader
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send frames until the reader or the controller goes."""
        leaving = asyncio.create_task(self._until_gone(receive))
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
            async for piece in self.body_iterator:
                async with asyncio.timeout(self._send_timeout_s):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            log.info("slow_reader_cut_off", client=scope.get("client"))
        finally:
            leaving.cancel()
            self._reader.close()

    async def _until_gone(self, receive: Receive) -> None:
        """Close the reader when its client hangs up, or owes us a body that does not come."""
        with contextlib.suppress(HTTPException):
            while (await receive())["type"] != "http.disconnect":
                pass
        self._reader.close()


async def _pieces(reader: Reader, ping_s: float) -> AsyncGenerator[bytes]:
    """Yield what to send: all frames that wait in one piece, their bytes as the feed made them."""
    yield HELLO
    while not reader.closed:
        try:
            async with asyncio.timeout(ping_s):
                found = await reader.batch()
        except TimeoutError:
            yield PING
            continue
        if found:
            yield b"".join([item.wire for item in found])


@router.get(
    "/stream",
    response_class=Response,
    responses={
        200: {
            "description": "Events `sample` (SampleView, each second), `event` (EventView), "
            "`changed` (ChangedView), `transaction` (TransactionFrameView) and `resync` "
            "(ResyncView: read the lists afresh).",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    },
)
async def stream_events(
    service: Service,
    last_event_id: Annotated[
        str | None, Header(max_length=64, description="go on after this event")
    ] = None,
) -> Stream:
    """Follow samples, events, changes and transactions as they happen."""
    return Stream(service.watch(last_event_id))
