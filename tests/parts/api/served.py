"""The API behind its real server, as the daemon puts it there, over a rack in memory.

In virtual time its connections are in memory, and plain HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

from controller.api.gate.access import Access
from controller.api.gate.idempotency import AnswersInMemory
from controller.api.server.connections import Connection
from controller.api.server.server import ApiServer
from controller.daemon.listen import PeopleOptions
from controller.daemon.serving import server_of
from controller.stream.counters import Counters
from testbed.simulated.loop import VirtualLoop
from tests.parts.controller.rack import Rack

LOOPBACK = "127.0.0.1"


class _InMemory(Connection):
    """A connection that nobody accepted: it enters the limit when it is made."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.address = transport.get_extra_info("peername")[0]
        if self._limit.enter(self):
            super().connection_made(transport)
        else:
            transport.abort()


@contextlib.asynccontextmanager
async def serving(
    options: PeopleOptions, access: Access | None = None
) -> AsyncIterator[tuple[ApiServer, int]]:
    """Serve at a free port of loopback; return the server and the port."""
    async with contextlib.AsyncExitStack() as stack:
        rack = Rack(Path(stack.enter_context(TemporaryDirectory())))
        service = await rack.up()
        stack.push_async_callback(rack.down)
        server = server_of(service, access or Access(), Counters(), AnswersInMemory(), options)
        sockets = []
        if isinstance(asyncio.get_running_loop(), VirtualLoop):
            port = await stack.enter_async_context(_listening(server))
        else:
            sockets = [stack.enter_context(socket.create_server((LOOPBACK, 0)))]
            port = sockets[0].getsockname()[1]
        task = asyncio.create_task(server._serve(sockets))
        try:
            yield server, port
        finally:
            server.should_exit = True
            await task


@contextlib.asynccontextmanager
async def _listening(server: ApiServer) -> AsyncIterator[int]:
    """Take connections in memory for ``server``; return the port."""

    def connection() -> Connection:
        return _InMemory(
            server.connections,
            "",
            config=server.config,
            server_state=server.server_state,
            app_state={},
        )

    loop = asyncio.get_running_loop()
    async with await loop.create_server(connection, LOOPBACK, 0) as listener:
        yield listener.sockets[0].getsockname()[1]


async def _for_ever(folder: Path) -> None:
    async with serving(PeopleOptions(open=True)) as (_, port):
        (folder / "port.new").write_text(str(port))
        (folder / "port.new").rename(folder / "port")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_for_ever(Path(sys.argv[1])))
