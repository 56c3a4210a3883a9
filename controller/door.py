"""Who may stand at the API's door: so many connections at once, and none that dawdles.

A connection is *idle* until a whole request of it has arrived, and again once that is answered:
handshakes, half a head, a body that drips and connections kept for later are all the same here.
When there are too many connections, an idle one of the address that has most of them makes room,
the oldest first; so a flood drives itself out, and who asks at once is answered. What has been
idle for too long is closed in any case (slow loris).
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Protocol

import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

log = structlog.get_logger(__name__)

MAX_CONNECTIONS = 2048
RESERVED_FILES = 256
"""Open files that the rest of the controller needs: store, switches, aggregators, agents."""
REQUEST_S = 30.0
"""Longest that a whole request may take to arrive, and a connection be kept without one."""
HANDSHAKE_S = 10.0
TELL_EVERY_S = 10.0


def connections_possible() -> int:
    """Return how many connections the process's limit of open files leaves room for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(MAX_CONNECTIONS, files - RESERVED_FILES))


class Guest(Protocol):
    """A connection, as the door knows it."""

    address: str

    def turn_out(self) -> None:
        """Close it now, whatever it was about to say; it leaves by itself then."""


class Door:
    """Counts connections and decides who has to go. Lives on the loop."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._guests: set[Guest] = set()
        self._idle: dict[str, dict[Guest, float]] = {}
        """Per address the idle ones and since when, the longest first."""
        self._turned_out = 0
        self._told_at = float("-inf")

    def __len__(self) -> int:
        return len(self._guests)

    def enter(self, guest: Guest) -> bool:
        """Let somebody in; False when nobody could make room."""
        if len(self._guests) >= self.limit and not self.make_room():
            self._count()
            return False
        self._guests.add(guest)
        self.idle(guest)
        return True

    def make_room(self) -> bool:
        """Turn one out; False when nobody is idle."""
        if not self._idle:
            return False
        heaviest = max(self._idle.values(), key=len)
        self._turn_out(next(iter(heaviest)))
        return True

    def idle(self, guest: Guest) -> None:
        """Note that nothing is owed to this one from now on."""
        if guest in self._guests:
            self._idle.setdefault(guest.address, {}).setdefault(guest, self._clock())

    def busy(self, guest: Guest) -> None:
        """Note that a whole request has arrived."""
        here = self._idle.get(guest.address)
        if here is not None and here.pop(guest, None) is not None and not here:
            del self._idle[guest.address]

    def leave(self, guest: Guest) -> None:
        """Forget one that is gone."""
        self.busy(guest)
        self._guests.discard(guest)

    def sweep(self) -> None:
        """Turn out everybody who has been idle for too long."""
        late = self._clock() - REQUEST_S
        for here in list(self._idle.values()):
            for guest in [g for g, since in here.items() if since < late]:
                self._turn_out(guest)

    def _turn_out(self, guest: Guest) -> None:
        self.leave(guest)
        guest.turn_out()
        self._count()

    def _count(self) -> None:
        self._turned_out += 1
        now = self._clock()
        if now - self._told_at >= TELL_EVERY_S:
            log.warning("connections_turned_out", count=self._turned_out, open=len(self._guests))
            self._turned_out, self._told_at = 0, now


class Connection(H11Protocol):
    """One connection of the API, from its acceptance on."""

    def __init__(self, door: Door, address: str, **given: Any) -> None:
        super().__init__(**given)
        self.address = address
        self._door = door
        self._welcome: asyncio.Task[None] | None = None
        self._made = False

    def welcome(self, accepted: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Begin to serve it, with a handshake before where there is one."""
        self._welcome = self.loop.create_task(self._begin(accepted, tls))

    async def _begin(self, accepted: socket.socket, tls: ssl.SSLContext | None) -> None:
        limit_s = HANDSHAKE_S if tls else None
        try:
            await self.loop.connect_accepted_socket(
                lambda: self, accepted, ssl=tls, ssl_handshake_timeout=limit_s
            )
        except OSError as error:  # an SSLError is one
            log.debug("connection_not_made", client=self.address, error=str(error))
        finally:
            if not self._made:
                accepted.close()
                self._door.leave(self)

    def turn_out(self) -> None:
        """Close it now."""
        if self._made:
            self.transport.abort()
        elif self._welcome is not None:
            self._welcome.cancel()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to read requests: the handshake is done."""
        self._made = True
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Take bytes; the connection is busy once they make a whole request."""
        super().data_received(data)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            self._door.busy(self)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._door.idle(self)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave."""
        self._door.leave(self)
        super().connection_lost(exc)
