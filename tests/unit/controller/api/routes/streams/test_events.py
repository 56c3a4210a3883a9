"""A reader that takes nothing any more is cut off, quietly, and one that goes leaves no trace."""

from __future__ import annotations

import asyncio

from fastapi import HTTPException
from starlette.types import Message, Scope
from structlog.testing import capture_logs

from controller.api.routes.streams.events import HELLO, PING, Stream
from controller.daemon.listen import PeopleOptions
from controller.stream.feed import Feed
from tests.parts.api.served import serving

SCOPE: Scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": None}


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def gone() -> Message:
    return {"type": "http.disconnect"}


async def stuck(message: Message) -> None:
    if message["type"] == "http.response.body":
        await asyncio.Event().wait()


async def stuck_at_once(message: Message) -> None:
    await asyncio.Event().wait()


async def test_a_reader_that_takes_nothing_is_cut_off_without_a_trace() -> None:
    feed = Feed()
    stream = Stream(feed.read(None))
    with capture_logs() as logs:
        await asyncio.wait_for(stream(SCOPE, never, stuck), 60)
    assert [entry["event"] for entry in logs] == ["slow_reader_cut_off"]
    assert feed.readers == 0


async def test_a_reader_that_went_before_the_first_byte_is_forgotten() -> None:
    feed = Feed()
    stream = Stream(feed.read(None))
    await asyncio.wait_for(stream(SCOPE, gone, stuck_at_once), 60)
    assert feed.readers == 0


async def test_a_reader_that_hangs_up_ends_its_stream() -> None:
    feed = Feed()
    hang_up = asyncio.Event()
    sent: list[Message] = []

    async def receive() -> Message:
        await hang_up.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)
        if len(sent) == 2:
            hang_up.set()

    await asyncio.wait_for(Stream(feed.read(None))(SCOPE, receive, send), 60)
    assert [message["type"] for message in sent[:2]] == [
        "http.response.start",
        "http.response.body",
    ]
    assert feed.readers == 0


async def test_a_reader_whose_request_never_ends_is_forgotten() -> None:
    """The guard says so in the place of its next message, and says nothing after that."""
    feed = Feed()

    async def receive() -> Message:
        raise HTTPException(408)

    async def send(message: Message) -> None:
        pass

    await asyncio.wait_for(Stream(feed.read(None))(SCOPE, receive, send), 30)
    assert feed.readers == 0


async def test_a_quiet_stream_says_that_it_is_still_there() -> None:
    feed = Feed()
    pieces: list[bytes] = []

    async def send(message: Message) -> None:
        pieces.append(message.get("body", b""))
        if len(pieces) == 4:
            feed.close()

    await asyncio.wait_for(Stream(feed.read(None))(SCOPE, never, send), 60)
    assert pieces == [b"", HELLO, PING, PING, b""]


async def test_the_end_of_the_server_ends_streams_whole() -> None:
    """Not cut off when the time to drain is over: the last chunk says that it was the last."""
    async with serving(PeopleOptions(open=True)) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /api/v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        async with asyncio.timeout(30):
            assert b" 200 " in await reader.readuntil(b"\r\n")
            await reader.readuntil(b"retry: 1000\n\n")
    async with asyncio.timeout(30):
        assert (await reader.read()).endswith(b"0\r\n\r\n")
    writer.close()
