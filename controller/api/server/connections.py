"""Limits the API's connections: their number, the share of one address, and how slow they may be.

A connection is *idle* until a whole request of it has arrived, and again once that is answered:
handshakes, half a head, a body that drips and connections kept for later are all the same here.
It is *stalled* while its reader does not take the bytes that wait for it (see ``outflow``).

At the limit one connection makes room for a new one, of the address that has the most: an idle
one, a stalled one, or, where that address has more than half of all, the one that is served the
longest. An address never makes another one give way that has fewer connections. What has been
idle or stalled for too long is closed in any case (slow loris, slow read).
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Protocol

import h11
import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from controller.api.problems import problem
from controller.api.server.heads import StrictConnection
from controller.api.server.outflow import (
    SEND_S,
    Outflow,
    Reading,
    bound,
    followed,
    outflow,
    reset_at_close,
)
from controller.base.addresses import network_of

log = structlog.get_logger(__name__)

MAX_CONNECTIONS = 2048
RESERVED_FILES = 256
"""Open files that the rest of the controller needs: store, switches, aggregators, agents."""
REQUEST_S = 30.0
"""Longest that a whole request may take to arrive, and a connection be kept without one."""
HANDSHAKE_S = 10.0
STALLED_S = 2.0
"""A reader that is behind for this long makes room before those that keep up."""
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

    def outflow(self) -> Outflow | None:
        """Return what its reader has taken; None before the connection is made."""


class Door:
    """Counts connections and decides which one has to go. Lives on the loop."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._guests: dict[str, dict[Guest, None]] = {}
        """Per network all connections, the oldest first."""
        self._idle: dict[str, dict[Guest, float]] = {}
        """Per network the idle ones and since when, the longest first."""
        self._reading: dict[Guest, Reading] = {}
        """Those for which bytes wait."""
        self._open = 0
        self._turned_out = 0
        self._told_at = float("-inf")

    def __len__(self) -> int:
        return self._open

    def enter(self, guest: Guest) -> bool:
        """Let a connection in; False when none could make room."""
        network = network_of(guest.address)
        if self._open >= self.limit and not self.make_room(network):
            self._count()
            return False
        self._guests.setdefault(network, {})[guest] = None
        self._open += 1
        self.idle(guest)
        return True

    def make_room(self, network: str | None = None) -> bool:
        """Turn one out, for a connection of ``network`` if that is known; False without any."""
        guest = next(self._dispensable(network), None)
        if guest is None:
            return False
        self._turn_out(guest)
        return True

    def _dispensable(self, network: str | None) -> Iterator[Guest]:
        """Yield the connections that may have to go, the first one first."""
        own = len(self._guests.get(network, ())) if network is not None else 0
        heaviest = sorted(
            (name for name, here in self._guests.items() if name == network or len(here) > own),
            key=lambda name: len(self._guests[name]) + (name == network),
            reverse=True,
        )
        late = self._clock() - STALLED_S
        for name in heaviest:
            yield from self._idle.get(name, ())
            behind = [g for g in self._guests[name] if self._stalled(g, late)]
            yield from sorted(behind, key=lambda g: self._reading[g].since)
            if name == heaviest[0] != network and len(self._guests[name]) > self.limit // 2:
                yield from self._guests[name]

    def _stalled(self, guest: Guest, late: float) -> bool:
        reading = self._reading.get(guest)
        return reading is not None and reading.since <= late

    def _has(self, guest: Guest) -> bool:
        return guest in self._guests.get(network_of(guest.address), ())

    def idle(self, guest: Guest) -> None:
        """Note that no request of this one is under way from now on."""
        if self._has(guest):
            here = self._idle.setdefault(network_of(guest.address), {})
            here.setdefault(guest, self._clock())

    def busy(self, guest: Guest) -> None:
        """Note that a whole request has arrived."""
        _drop(self._idle, network_of(guest.address), guest)

    def leave(self, guest: Guest) -> None:
        """Forget one that is gone."""
        self.busy(guest)
        self._reading.pop(guest, None)
        if self._has(guest):
            _drop(self._guests, network_of(guest.address), guest)
            self._open -= 1

    def sweep(self) -> None:
        """Turn out every connection that has been idle or stalled for too long."""
        now = self._clock()
        for guest in [g for here in self._guests.values() for g in here]:
            self._look(guest, now)
        for here in list(self._idle.values()):
            for guest in [g for g, since in here.items() if since < now - REQUEST_S]:
                self._turn_out(guest)

    def _look(self, guest: Guest, now: float) -> None:
        """Follow one reader; one that takes its answer is not idle, however long it takes."""
        flow = guest.outflow()
        reading = followed(self._reading.get(guest), flow, now) if flow is not None else None
        if reading is None:
            self._reading.pop(guest, None)
            return
        self._reading[guest] = reading
        if now - reading.since > SEND_S:
            self._turn_out(guest)
        elif guest in self._idle.get(network_of(guest.address), ()):
            self.busy(guest)
            self.idle(guest)

    def _turn_out(self, guest: Guest) -> None:
        self.leave(guest)
        guest.turn_out()
        self._count()

    def _count(self) -> None:
        self._turned_out += 1
        now = self._clock()
        if now - self._told_at >= TELL_EVERY_S:
            log.warning("connections_turned_out", count=self._turned_out, open=self._open)
            self._turned_out, self._told_at = 0, now


def _drop(sets: dict[str, dict[Guest, Any]], network: str, guest: Guest) -> None:
    """Take one out of its network's set, and the set with the last one."""
    here = sets.get(network)
    if here is not None and guest in here:
        del here[guest]
        if not here:
            del sets[network]


class Connection(H11Protocol):
    """One connection of the API, from its acceptance on."""

    def __init__(self, door: Door, address: str, **given: Any) -> None:
        super().__init__(**given)
        self.conn = self._strict = StrictConnection()
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
            bound(accepted)
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
            with contextlib.suppress(OSError):
                reset_at_close(self.transport.get_extra_info("socket"))
            self.transport.abort()
        elif self._welcome is not None:
            self._welcome.cancel()

    def outflow(self) -> Outflow | None:
        """Return what the reader has taken; None without a connection."""
        if not self._made:
            return None
        try:
            return outflow(self.transport.get_extra_info("socket"))
        except (OSError, ValueError):  # it is closed
            return None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to read requests: the handshake is done."""
        self._made = True
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Take bytes; the connection is busy once they make a whole request."""
        super().data_received(data)
        self._busy_if_asked()

    def send_400_response(self, msg: str) -> None:
        """Say why these bytes are no request, and close."""
        strict = self._strict
        answer = problem(strict.refused, "invalid", strict.why or msg, object="request")
        head = h11.Response(
            status_code=answer.status_code,
            headers=[*answer.raw_headers, (b"connection", b"close")],
            reason=HTTPStatus(answer.status_code).phrase,
        )
        for event in (head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def on_response_complete(self) -> None:
        """Wait for the next request, which may have arrived already."""
        self._door.idle(self)
        super().on_response_complete()
        self._busy_if_asked()

    def _busy_if_asked(self) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            self._door.busy(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave."""
        self._door.leave(self)
        super().connection_lost(exc)
