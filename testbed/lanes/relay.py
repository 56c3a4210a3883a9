"""Relays TCP connections from a port of this machine's loopback to one inside a lane."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

from testbed.lanes import kernel

_CHUNK = 1 << 16
_HOST = "127.0.0.1"


class LoopbackRelay:
    """Connects to a lane's loopback. Use it in a process with one thread."""

    def __init__(self, first: int) -> None:
        """``first`` is the pid of the lane's first process."""
        self._inside = Path(f"/proc/{first}/ns/net").open("rb")  # noqa: SIM115 - for life
        self._here = Path("/proc/self/ns/net").open("rb")  # noqa: SIM115 - for life
        self._servers: list[asyncio.Server] = []
        self._open: set[asyncio.Task[None]] = set()

    async def listen(self, port: int) -> int:
        """Relay to ``port`` inside; return the port of this machine, which the kernel chooses."""

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._relay(port, reader, writer))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

        server = await asyncio.start_server(accept, _HOST, 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _relay(
        self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        inner = self._socket()
        try:
            await asyncio.get_running_loop().sock_connect(inner, (_HOST, port))
            far_reader, far_writer = await asyncio.open_connection(sock=inner)
        except OSError:
            inner.close()
            writer.close()
            return
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            writer.close()
            far_writer.close()

    def _socket(self) -> socket.socket:
        """Return a socket of the lane: it stays there when this thread has come back."""
        kernel.enter(self._inside.fileno(), kernel.NEWNET)
        try:
            made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        finally:
            kernel.enter(self._here.fileno(), kernel.NEWNET)
        made.setblocking(False)
        return made


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end of one direction, and pass that end on."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
