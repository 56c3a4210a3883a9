"""Limits the API's connections: their number, the share of one address, and how slow they may be.

A connection is *idle* until a whole request has arrived, and again after the answer: handshakes,
incomplete heads, slow bodies and kept-alive connections all count as idle.
It is *stalled* while its reader does not take the bytes sent to it (see ``outflow``).

At the limit one connection is closed for a new one, of the address that has the most: an idle one,
a stalled one, or, if that address has more than half of all, the oldest one. An address never
displaces another one that has fewer connections. Connections that are idle or stalled for too long
are closed in any case (slow loris, slow read).
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Protocol

import h11
import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from base import clock
from controller.api.problems import problem
from controller.api.server.heads import StrictConnection
from controller.api.server.outflow import (
    SEND_S,
    Outflow,
    ReadGoal,
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
"""Longest time until a whole request has arrived, and that a connection is kept without one."""
HANDSHAKE_S = 10.0
STALLED_S = 2.0
"""A reader that is behind for this long is closed before readers that keep up."""
TELL_EVERY_S = 10.0


def connections_possible() -> int:
    """Return how many connections the process's limit of open files leaves room for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(MAX_CONNECTIONS, files - RESERVED_FILES))


class LimitedConnection(Protocol):
    """A connection, as the limit sees it."""

    address: str

    def close(self) -> None:
        """Close the connection at once; unsent bytes are dropped."""

    def outflow(self) -> Outflow | None:
        """Return what its reader has taken; None before the handshake."""


class ConnectionLimit:
    """Counts connections and decides which one to close. Lives on the loop."""

    def __init__(self, most: int, clock: Callable[[], float] = clock.monotonic) -> None:
        self.most = most
        self._clock = clock
        self._clients: dict[str, dict[LimitedConnection, None]] = {}
        """All connections per network, the oldest first."""
        self._idle: dict[str, dict[LimitedConnection, float]] = {}
        """The idle connections per network and since when, the longest first."""
        self._reading: dict[LimitedConnection, ReadGoal] = {}
        """Connections with unsent bytes."""
        self._open = 0
        self._closed = 0
        self._told_at = float("-inf")

    def __len__(self) -> int:
        return self._open

    def enter(self, client: LimitedConnection) -> bool:
        """Admit a connection; False if no other one can be closed for it."""
        network = network_of(client.address)
        if self._open >= self.most and not self.make_room(network):
            self._count()
            return False
        self._clients.setdefault(network, {})[client] = None
        self._open += 1
        self.idle(client)
        return True

    def make_room(self, network: str | None = None) -> bool:
        """Close one to admit another of ``network``, None if unknown; False if none can go."""
        client = next(self._closable(network), None)
        if client is None:
            return False
        self._close(client)
        return True

    def _closable(self, network: str | None) -> Iterator[LimitedConnection]:
        """Yield the connections that may be closed, in that order."""
        own = len(self._clients.get(network, ())) if network is not None else 0
        heaviest = sorted(
            (name for name, here in self._clients.items() if name == network or len(here) > own),
            key=lambda name: len(self._clients[name]) + (name == network),
            reverse=True,
        )
        late = self._clock() - STALLED_S
        for name in heaviest:
            yield from self._idle.get(name, ())
            behind = [c for c in self._clients[name] if self._stalled(c, late)]
            yield from sorted(behind, key=lambda c: self._reading[c].since)
            if name == heaviest[0] != network and len(self._clients[name]) > self.most // 2:
                yield from self._clients[name]

    def _stalled(self, client: LimitedConnection, late: float) -> bool:
        reading = self._reading.get(client)
        return reading is not None and reading.since <= late

    def _has(self, client: LimitedConnection) -> bool:
        return client in self._clients.get(network_of(client.address), ())

    def idle(self, client: LimitedConnection) -> None:
        """Note that this connection has no request in progress."""
        if self._has(client):
            here = self._idle.setdefault(network_of(client.address), {})
            here.setdefault(client, self._clock())

    def busy(self, client: LimitedConnection) -> None:
        """Note that a whole request has arrived."""
        _drop(self._idle, network_of(client.address), client)

    def leave(self, client: LimitedConnection) -> None:
        """Remove a connection that is closed."""
        self.busy(client)
        self._reading.pop(client, None)
        if self._has(client):
            _drop(self._clients, network_of(client.address), client)
            self._open -= 1

    def sweep(self) -> None:
        """Close every connection that has been idle or stalled for too long."""
        now = self._clock()
        for client in [c for here in self._clients.values() for c in here]:
            self._update(client, now)
        for here in list(self._idle.values()):
            for client in [c for c, since in here.items() if since < now - REQUEST_S]:
                self._close(client)

    def _update(self, client: LimitedConnection, now: float) -> None:
        """Update one reader's progress; a reader that makes progress is not idle."""
        flow = client.outflow()
        reading = followed(self._reading.get(client), flow, now) if flow is not None else None
        if reading is None:
            self._reading.pop(client, None)
            return
        self._reading[client] = reading
        if now - reading.since > SEND_S:
            self._close(client)
        elif client in self._idle.get(network_of(client.address), ()):
            self.busy(client)
            self.idle(client)

    def _close(self, client: LimitedConnection) -> None:
        self.leave(client)
        client.close()
        self._count()

    def _count(self) -> None:
        self._closed += 1
        now = self._clock()
        if now - self._told_at >= TELL_EVERY_S:
            log.warning("connections_closed", count=self._closed, open=self._open)
            self._closed, self._told_at = 0, now


def _drop(
    sets: dict[str, dict[LimitedConnection, Any]], network: str, client: LimitedConnection
) -> None:
    """Remove a connection from its network's set, and the set with its last one."""
    here = sets.get(network)
    if here is not None and client in here:
        del here[client]
        if not here:
            del sets[network]


class Connection(H11Protocol):
    """One connection of the API, from its acceptance."""

    def __init__(self, limit: ConnectionLimit, address: str, **given: Any) -> None:
        super().__init__(**given)
        self.conn = self._strict = StrictConnection()
        self.address = address
        self._limit = limit
        self._serving: asyncio.Task[None] | None = None
        self._made = False

    def serve(self, accepted: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Start to serve the connection, after a TLS handshake if ``tls`` is given."""
        self._serving = self.loop.create_task(self._begin(accepted, tls))

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
                self._limit.leave(self)

    def close(self) -> None:
        """Close the connection at once."""
        if self._made:
            with contextlib.suppress(OSError):
                reset_at_close(self.transport.get_extra_info("socket"))
            self.transport.abort()
        elif self._serving is not None:
            self._serving.cancel()

    def outflow(self) -> Outflow | None:
        """Return what the reader has taken; None before the handshake."""
        if not self._made:
            return None
        try:
            return outflow(self.transport.get_extra_info("socket"))
        except (OSError, ValueError):  # the socket is closed
            return None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to read requests: the handshake is complete."""
        self._made = True
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Take bytes; the connection is busy when they complete a request."""
        super().data_received(data)
        self._busy_if_asked()

    def send_400_response(self, msg: str) -> None:
        """Answer why these bytes are not a request, and close."""
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
        """Wait for the next request, which may already be there."""
        self._limit.idle(self)
        super().on_response_complete()
        self._busy_if_asked()

    def _busy_if_asked(self) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            self._limit.busy(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the limit."""
        self._limit.leave(self)
        super().connection_lost(exc)
