"""The API's HTTP server: accepts connections and counts them."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable

import structlog
import uvicorn

from controller.api.server.connections import Connection, ConnectionLimit, connections_possible

log = structlog.get_logger(__name__)

BACKLOG = 512
ACCEPT_AT_ONCE = 32
ACCEPT_PAUSE_S = 0.1
SWEEP_EVERY_S = 1.0


class ApiServer(uvicorn.Server):
    """Accepts connections itself, so that their number stays within the limit."""

    def __init__(self, config: uvicorn.Config, hang_up: Callable[[], None]) -> None:
        """``hang_up`` ends all event streams."""
        super().__init__(config)
        self._hang_up = hang_up
        self.connections = ConnectionLimit(connections_possible())
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept at ``sockets``."""
        self.servers = []
        for listener in sockets or ():
            listener.setblocking(False)
            listener.listen(BACKLOG)
            self._tasks.append(asyncio.create_task(self._accept(listener), name="api accept"))
        self._tasks.append(asyncio.create_task(self._sweep(), name="api sweep"))
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, end the streams, then wait for the other requests."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._hang_up()
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for number in itertools.count():
            if number % ACCEPT_AT_ONCE == 0:  # let other tasks run while the backlog is full
                await asyncio.sleep(0)
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:  # no file descriptor is free, or the client is gone
                log.warning("connection_not_accepted", error=str(error))
                self.connections.make_room()
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            connection = Connection(
                self.connections,
                address[0],
                config=self.config,
                server_state=self.server_state,
                app_state={},
            )
            if self.connections.enter(connection):
                connection.serve(accepted, self.config.ssl)
            else:
                accepted.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            self.connections.sweep()
