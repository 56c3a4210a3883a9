"""Heads of requests that are too long, malformed or costly: refused before they are parsed."""

from __future__ import annotations

import asyncio

import h11
import pytest

from controller.api.server.heads import MAX_HEAD_BYTES, MAX_HEAD_LINES, StrictConnection
from controller.daemon.listen import PeopleOptions
from tests.parts.api.served import serving

HEAD = b"GET /api/v1/alive HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\n"
ANSWER_S = 60
HOSTILE = {
    "blanks before a control character": (HEAD + b"X:" + b" " * 250_000 + b"\0\r\n\r\n", 431),
    "the same, short": (HEAD + b"X:" + b" " * 8_000 + b"\0\r\n\r\n", 400),
    "a return that ends no line": (HEAD + b"X:" + b" " * 8_000 + b"\r \r\n\r\n", 400),
    "a delete character": (HEAD + b"X:" + b" " * 8_000 + b"\x7f\r\n\r\n", 400),
    "a long line": (HEAD + b"X: " + b"a" * 60_000 + b"\r\n\r\n", 431),
    "a long path": (b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
    "many lines": (HEAD + b"a: b\r\n" * MAX_HEAD_LINES + b"\r\n", 431),
    "a cookie of backslashes": (HEAD + b'Cookie: a="' + b'\\"' * 30_000 + b'"\r\n\r\n', 431),
    "chunks": (POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 40_000, 411),
    "chunks in disguise": (POST + b"transfer-ENCODING:\tchunked\r\n\r\n", 411),
    "two lengths": (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n", 400),
    "an endless length": (POST + b"Content-Length: " + b"9" * 9_000 + b"\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\xfc\x03\r\n\r\n", 400),
}


async def status(port: int, sent: bytes) -> int:
    """Send bytes, and return the status of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        async with asyncio.timeout(ANSWER_S):
            return int((await reader.readline()).split()[1])
    finally:
        writer.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_head_is_refused_at_once(name: str) -> None:
    """h11 alone needs six minutes for the first one."""
    sent, wanted = HOSTILE[name]
    async with serving(PeopleOptions(open=True)) as (server, port):
        assert await status(port, sent) == wanted
        assert await status(port, HEAD + b"\r\n") == 200
        assert len(server.connections) <= 2


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"\r\n",
        HEAD + b"a: b\r\n" * (MAX_HEAD_LINES - 3) + b"\r\n",
        HEAD + b"X: " + b"a" * 10_000 + b"\r\n\r\n",
        HEAD + b"X: \xe9 \t b\r\n\r\n",
        b"GET /api/v1/alive HTTP/1.0\r\n\r\n",
        (HEAD + b"\r\n") * 50,
        HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n",
    ],
)
async def test_an_honest_head_is_answered(sent: bytes) -> None:
    async with serving(PeopleOptions(open=True)) as (_, port):
        assert await status(port, sent) == 200


async def test_no_connection_leaves_the_count_by_an_upgrade() -> None:
    async with serving(PeopleOptions(open=True)) as (server, _):
        assert server.config.ws == "none"


def test_a_head_that_drips_is_bounded() -> None:
    connection = StrictConnection()
    connection.receive_data(HEAD + b"X: ")
    with pytest.raises(h11.RemoteProtocolError):
        for _ in range(MAX_HEAD_BYTES):
            connection.receive_data(b"a")
            assert connection.next_event() is h11.NEED_DATA
    assert connection.refused == 431


def test_heads_in_one_packet_are_judged_one_by_one() -> None:
    """The second one is looked at when the first is answered; a body is not taken for a head."""
    connection = StrictConnection()
    body = b"\0\r\n\r\n"
    connection.receive_data(POST + b"Content-Length: 5\r\n\r\n" + body + HEAD + b"\0\r\n\r\n")
    kinds = [type(connection.next_event()) for _ in range(3)]
    assert kinds == [h11.Request, h11.Data, h11.EndOfMessage]
    connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    connection.start_next_cycle()
    with pytest.raises(h11.RemoteProtocolError, match="control"):
        connection.next_event()
