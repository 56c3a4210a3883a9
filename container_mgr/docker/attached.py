"""The streams of one command in a container, over a connection of their own to the engine.

The SDK hands out the socket below its buffer, which may already hold the first output. So this
module makes the one request itself, with h11, and reads and writes on the event loop: what is not
read stays in the kernel's buffers, and the command waits.
"""

from __future__ import annotations

import asyncio
import json
import struct
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import h11

Stream = Literal["stdout", "stderr"]

_PIECE_BYTES = 32 * 1024
_HEADER = struct.Struct(">BxxxL")
"""Before every frame: the stream's number and the number of bytes that follow."""
_STREAMS: dict[int, Stream] = {1: "stdout", 2: "stderr"}
_MAX_REFUSAL_BYTES = 64 * 1024


class EngineRefusalError(Exception):
    """The engine answered with an error status; the message is the engine's."""


@dataclass(slots=True)
class Attached:
    """A command's input and output. ``read`` and ``write`` raise OSError for a lost engine."""

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    _head: bytes
    """What came with the engine's answer."""
    _terminal: bool
    _left: int = 0
    """Bytes of the present frame that are not read yet."""
    _stream: Stream = "stdout"

    async def read(self) -> tuple[Stream, bytes] | None:
        """Return the next piece of output, at most 32 KiB; None at its end."""
        if self._terminal:
            piece = await self._some(_PIECE_BYTES)
            return ("stdout", piece) if piece else None
        while not self._left:
            header = b""
            while len(header) < _HEADER.size:
                more = await self._some(_HEADER.size - len(header))
                if not more:
                    return None
                header += more
            number, self._left = _HEADER.unpack(header)
            self._stream = _STREAMS.get(number, "stderr")
        piece = await self._some(min(self._left, _PIECE_BYTES))
        self._left -= len(piece)
        return (self._stream, piece) if piece else None

    async def write(self, data: bytes) -> None:
        """Send input; returns when the engine accepts more."""
        self._writer.write(data)
        await self._writer.drain()

    def close_input(self) -> None:
        """End the input; output continues."""
        if self._writer.can_write_eof() and not self._writer.is_closing():
            self._writer.write_eof()

    def close(self) -> None:
        """Close the connection at once; the command continues without it."""
        self._writer.transport.abort()

    async def _some(self, most: int) -> bytes:
        if self._head:
            piece, self._head = self._head[:most], self._head[most:]
            return piece
        return await self._reader.read(most)


async def attach(url: str, version: str, ident: str, *, terminal: bool) -> Attached:
    """Start the command ``ident``, which is created, and return its streams.

    ``url`` is the engine's as the SDK writes it: ``http+unix:///PATH`` or ``http://HOST:PORT``.
    Raises OSError, and EngineRefusalError with the engine's reason.
    """
    reader, writer = await _connected(url)
    try:
        head = await _switched(reader, writer, f"/v{version}/exec/{ident}/start", terminal)
    except BaseException:
        writer.transport.abort()
        raise
    return Attached(reader, writer, head, terminal)


async def _connected(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    if parts.scheme == "http+unix":
        path = f"{parts.netloc}{parts.path}".lstrip("/")
        return await asyncio.open_unix_connection(f"/{path}")
    return await asyncio.open_connection(parts.hostname, parts.port)


async def _switched(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str, terminal: bool
) -> bytes:
    """Ask the engine to start; return what followed its answer."""
    connection = h11.Connection(h11.CLIENT)
    body = json.dumps({"Detach": False, "Tty": terminal}).encode()
    request = h11.Request(
        method="POST",
        target=target,
        headers=[
            ("Host", "docker"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "Upgrade"),
            ("Upgrade", "tcp"),
        ],
    )
    for event in (request, h11.Data(data=body), h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    await writer.drain()
    status, refusal = 0, b""
    while True:
        try:
            seen = connection.next_event()
        except h11.RemoteProtocolError as error:
            raise OSError(f"the engine's answer is not HTTP: {error}") from error
        if seen is h11.NEED_DATA:
            connection.receive_data(await reader.read(_PIECE_BYTES))
        elif isinstance(seen, h11.InformationalResponse) and seen.status_code == 101:
            return bytes(connection.trailing_data[0])
        elif isinstance(seen, h11.Response):
            status = seen.status_code
        elif isinstance(seen, h11.Data):
            refusal = (refusal + bytes(seen.data))[:_MAX_REFUSAL_BYTES]
        elif isinstance(seen, h11.EndOfMessage):
            raise EngineRefusalError(_reason(status, refusal))
        elif isinstance(seen, h11.ConnectionClosed):
            raise OSError("the engine closed the connection")


def _reason(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return f"the engine answered with status {status}"
