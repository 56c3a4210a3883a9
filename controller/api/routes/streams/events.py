"""The live stream: server-sent events, resumable; a slow reader does not delay others.

Written directly on ASGI: with hundreds of readers, the work per reader and frame delays the API's
other answers (docs/adr/0032).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import Response

from controller.api.common import DesksOf, Entrance, SightOf
from controller.api.following import AnswerSlot, Following
from controller.api.operation import operation
from controller.api.problems import responses
from controller.base.errors import ServiceError
from controller.stream.feed import Reader

router = APIRouter(tags=["live"], responses=responses("unavailable"))
PING_S = 15.0
"""Longest silence on a connection, so that proxies keep it open."""
RETRY_MS = 1000
HELLO = f": lightloom\nretry: {RETRY_MS}\n\n".encode()
PING = b": still here\n\n"


class Stream(Following):
    """The frames of one reader."""

    def __init__(self, reader: Reader, *, place: AnswerSlot | None = None) -> None:
        super().__init__(
            _pieces(reader), media_type="text/event-stream", place=place, close=reader.close
        )


async def _pieces(reader: Reader) -> AsyncGenerator[bytes]:
    """Yield what to send: all waiting frames in one piece, encoded once by the feed."""
    yield HELLO
    while not reader.closed:
        try:
            async with asyncio.timeout(PING_S):
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
            "(ResyncView: read the lists again).",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    },
)
@operation("live:read")
async def stream_events(
    desks: DesksOf,
    sight: SightOf,
    enter: Entrance,
    last_event_id: Annotated[
        str | None, Header(max_length=64, description="continue after this event")
    ] = None,
) -> Stream:
    """Follow samples, events, changes and transactions live."""
    place = enter()
    try:
        return Stream(desks.feed.read(last_event_id, sight.cut()), place=place)
    except ServiceError:
        place.leave(place)
        raise
