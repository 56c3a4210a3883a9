"""The aggregators' connections, kept by a process that outlives the controller.

An aggregator whose connection breaks waits before it reconnects (Open vSwitch until the next whole
second, ``lib/rconn.c``), longer than a controller needs to come back. So the keeper
(``controller.daemon.keeper``) holds the connections and relays whole OpenFlow messages to the
controller, over one socket pair per connection. When the controller dies, the relay drops the
message that it had not finished, answers echo requests itself, and drops all other messages of an
aggregator, because the successor reads the whole state again. The successor gets a new pair for
every connection, with the aggregator's own hello as the first message, and so sees an aggregator
that has just connected.

TLS ends here too, because its state cannot be handed over: the pairs carry plain bytes, and the
controller gets the certificate that was shown. A connection is handed over after its handshake;
the duration and the number of handshakes are limited.

The relay understands message lengths, hello and echo (OpenFlow 1.3.5, 7.1, 7.5.1 and 7.5.2) and
nothing else; the controller decides which aggregators may stay. One thread; only ``turn`` blocks.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from base import clock
from controller.base.token_bucket import TokenBucket
from controller.daemon.handover import HandoverListener
from controller.devices.openflow.session.listen import Listener
from controller.devices.openflow.session.peer import Peer
from controller.devices.openflow.session.tls import CLIENT_HELLO, Secured, Speech, TlsRefusedError
from controller.devices.openflow.wire.framing import BadFrameError, take_frames

log = structlog.get_logger(__name__)

HELLO, ECHO_REQUEST, ECHO_REPLY = 0, 2, 3
MAX_CONNECTIONS = 8192
"""Aggregators' connections at once, as far as the limit of open files allows; more are closed."""
SPARE_FILES = 128
MOST_WAITING_BYTES = 4 << 20
"""Of one direction of one connection; beyond that its other end is not read."""
DOUBT_S = 0.5
"""After the controller has closed its end of a connection: time in which its death would show."""
HANDSHAKE_S = 10.0
"""For the TLS handshake of one conn."""
REFUSAL_LOG_RATE = 10.0
"""Log lines a second about handshakes that failed."""
MAX_HANDSHAKES = 512
"""TLS handshakes at once; one more ends the oldest of the address that has the most."""
_RECV_BYTES = 1 << 16
PLAIN = Speech()


@dataclass(slots=True, eq=False)
class _Connection:
    """An aggregator's conn, and the controller's end of it while there is a controller."""

    aggregator: socket.socket
    peer: Peer
    tls: Secured | None = None
    near: socket.socket | None = None
    heard: bytearray = field(default_factory=bytearray)
    """From the aggregator, up to an unfinished message."""
    said: bytearray = field(default_factory=bytearray)
    """From the controller, up to an unfinished message."""
    to_aggregator: bytearray = field(default_factory=bytearray)
    to_near: bytearray = field(default_factory=bytearray)
    hello: bytes = b""
    """The first message of the aggregator."""
    greeted: bool = False
    """A hello was sent to the aggregator; it gets only one."""
    left_at: float | None = None
    """Since when the controller's end is closed, while the reason is unknown."""
    events: dict[socket.socket, int] = field(default_factory=dict)
    """What the selector waits for on each end."""


class Relay:
    """Accepts aggregators on ``listener`` and connects each to the present controller."""

    def __init__(
        self,
        listener: socket.socket,
        clock: Callable[[], float] = clock.monotonic,
        speech: Speech = PLAIN,
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._speech = speech
        self._refusal_log = TokenBucket(REFUSAL_LOG_RATE, REFUSAL_LOG_RATE)
        self._control: socket.socket | None = None
        self._connections: set[_Connection] = set()
        self._unproven: dict[_Connection, float] = {}
        """Connections in their TLS handshake, oldest first, and when it must be over."""
        self._owed: deque[_Connection] = deque()
        """Connections that wait for room in the controller's queue."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = max(1, min(MAX_CONNECTIONS, (files - SPARE_FILES) // 2))
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def attach(self, control: socket.socket) -> None:
        """Hand every connection over to the controller at the other end of ``control``."""
        control.setblocking(False)
        self._control = control
        for conn in self._connections - self._unproven.keys():
            self._hand_over(conn)

    def detach(self) -> None:
        """Keep the aggregators after the controller has died; drop what it had not finished."""
        if self._control is not None:
            if self._owed:
                self._selector.unregister(self._control)
                self._owed.clear()
            self._control.close()
            self._control = None
        for conn in list(self._connections):
            if conn.near is not None:
                self._receive(conn, conn.near)  # what it sent before its death counts
            self._hang_up(conn)
            conn.left_at = None

    def close(self) -> None:
        """Close every conn, and what the selector holds; the listener is the caller's."""
        for conn in list(self._connections):
            self._drop(conn)
        self._selector.close()

    def disown(self) -> None:
        """In a forked child: close its copies of all sockets; the connections stay up."""
        for conn in self._connections:
            conn.aggregator.close()
            if conn.near is not None:
                conn.near.close()
        if self._control is not None:
            self._control.close()
        self._selector.close()
        self._listener.close()

    def watch(self, fd: int, then: Callable[[], None]) -> None:
        """Call ``then`` in each turn in which ``fd`` is readable."""
        self._selector.register(fd, selectors.EVENT_READ, lambda _events: then())

    def unwatch(self, fd: int) -> None:
        """Stop watching ``fd``."""
        self._selector.unregister(fd)

    def turn(self, timeout_s: float | None) -> None:
        """Wait for events, at most ``timeout_s`` seconds, and handle them."""
        ends = [conn.left_at + DOUBT_S for conn in self._connections if conn.left_at is not None]
        ends += list(self._unproven.values())[:1]
        if ends:
            until = max(0.0, min(ends) - self._clock())
            timeout_s = until if timeout_s is None else min(timeout_s, until)
        selected_at = self._clock()
        for key, events in self._selector.select(timeout_s):
            current = self._selector.get_map().get(key.fd)
            if (
                current is not None and current.fileobj is key.fileobj
            ):  # not closed by an earlier one
                current.data(events)
        # Time of the select call: after a pause of the whole machine a death may not show yet.
        for conn in list(self._connections):
            if conn.left_at is not None and selected_at >= conn.left_at + DOUBT_S:
                self._drop(conn)  # the controller lives and closed this connection
        for conn in [conn for conn, end in self._unproven.items() if selected_at >= end]:
            self._refuse(conn, "the TLS handshake takes too long")

    def _accept(self, _events: int) -> None:
        try:
            aggregator, address = self._listener.accept()
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                log.warning("openflow_accept_failed", error=str(error))
            return
        peer = Peer(str(address[0]), int(address[1]))
        if len(self._connections) >= self._most:
            log.warning("openflow_too_many_connections", peer=str(peer))
            aggregator.close()
            return
        aggregator.setblocking(False)
        with contextlib.suppress(OSError):
            aggregator.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        conn = _Connection(aggregator, peer)
        self._connections.add(conn)
        if self._speech.context is None:
            self._hand_over(conn)
        else:
            self._make_room()
            self._unproven[conn] = self._clock() + HANDSHAKE_S
        self._flow(conn)

    def _make_room(self) -> None:
        """End one handshake when there are too many, of the address that has the most."""
        if len(self._unproven) < MAX_HANDSHAKES:
            return
        ((host, _),) = Counter(conn.peer.host for conn in self._unproven).most_common(1)
        oldest = next(conn for conn in self._unproven if conn.peer.host == host)
        self._refuse(oldest, "too many TLS handshakes at once")

    def _refuse(self, conn: _Connection, why: str) -> None:
        if conn not in self._unproven:
            log.info("openflow_connection_ended", peer=str(conn.peer), reason=why)
        elif self._refusal_log.consume(self._clock()):
            log.warning("openflow_connection_refused", peer=str(conn.peer), reason=why)
        if conn.tls is not None:  # the TLS alert, as far as there is room for it
            conn.to_aggregator += conn.tls.outgoing()
            _send(conn.aggregator, conn.to_aggregator)
        self._drop(conn)

    def _hand_over(self, conn: _Connection) -> None:
        if self._control is None:
            return
        if self._owed or not self._handed_over(conn, self._control):
            if not self._owed:
                self._selector.register(self._control, selectors.EVENT_WRITE, self._hand_over_owed)
            self._owed.append(conn)

    def _hand_over_owed(self, _events: int) -> None:
        control = self._control
        while self._owed and control is not None:
            conn = self._owed[0]
            if conn in self._connections and not self._handed_over(conn, control):
                return
            self._owed.popleft()
        if control is not None:
            self._selector.unregister(control)

    def _handed_over(self, conn: _Connection, control: socket.socket) -> bool:
        """Give the controller its end of a new pair; False when its queue is full."""
        near, far = socket.socketpair()
        with far:
            try:
                socket.send_fds(control, [conn.peer.pack()], [far.fileno()])
            except BlockingIOError:
                near.close()
                return False
            except OSError as error:  # it is dying; its successor gets the connection
                log.info("openflow_not_handed_over", peer=str(conn.peer), error=str(error))
                near.close()
                return True
        near.setblocking(False)
        conn.near, conn.left_at = near, None
        conn.to_near = bytearray(conn.hello)
        self._flow(conn)
        return True

    # --- what comes in ---------------------------------------------------------------------

    def _from_aggregator(self, conn: _Connection, events: int) -> None:
        if events & selectors.EVENT_READ:
            try:
                data = conn.aggregator.recv(_RECV_BYTES)
            except BlockingIOError:
                data = None
            except OSError:
                data = b""
            if data == b"":
                self._drop(conn)
                return
            try:
                self._pass_on(conn, self._said(conn, data or b""))
            except (BadFrameError, TlsRefusedError) as error:
                self._refuse(conn, str(error))
                return
        self._flow(conn)

    def _said(self, conn: _Connection, data: bytes) -> bytes:
        """Return the plain bytes of what the aggregator sent. TlsRefusedError."""
        if conn in self._unproven and conn.tls is None and data:
            context = self._speech.context
            if data[0] == CLIENT_HELLO and context is not None:
                conn.tls = Secured(context)
            elif self._speech.plain:
                self._proven(conn)
            else:
                raise TlsRefusedError("it does not use TLS")
        if conn.tls is None:
            return data
        said = conn.tls.decrypt(data)
        conn.to_aggregator += conn.tls.outgoing()
        if conn in self._unproven and conn.tls.certificate is not None:
            conn.peer = replace(conn.peer, certificate=conn.tls.certificate)
            self._proven(conn)
        return said

    def _proven(self, conn: _Connection) -> None:
        del self._unproven[conn]
        self._hand_over(conn)

    def _reply(self, conn: _Connection, data: bytes | bytearray) -> None:
        if conn.tls is None:
            conn.to_aggregator += data
        elif data:
            conn.tls.encrypt(data)
            conn.to_aggregator += conn.tls.outgoing()

    def _pass_on(self, conn: _Connection, data: bytes) -> None:
        """Pass whole messages on, or answer echo requests while no controller is connected."""
        conn.heard += data
        frames = list(take_frames(conn.heard))
        if not conn.hello and frames:
            conn.hello = frames[0]
        if conn.near is not None:
            conn.to_near += b"".join(frames)
            return
        for frame in frames:
            if frame[1] == ECHO_REQUEST and conn.greeted:
                self._reply(conn, bytes((frame[0], ECHO_REPLY)) + frame[2:])

    def _from_controller(self, conn: _Connection, events: int) -> None:
        near = conn.near
        if near is None:
            return
        if events & selectors.EVENT_READ and not self._receive(conn, near):
            self._hang_up(conn)
            conn.left_at = self._clock()
        self._flow(conn)

    def _receive(self, conn: _Connection, near: socket.socket) -> bool:
        """Forward what the controller sends; False when it has closed its end."""
        while len(conn.to_aggregator) < MOST_WAITING_BYTES:
            try:
                data = near.recv(_RECV_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            conn.said += data
            said = bytearray()
            for frame in take_frames(conn.said):
                if frame[1] == HELLO and conn.greeted:
                    continue
                conn.greeted |= frame[1] == HELLO
                said += frame
            try:
                self._reply(conn, said)
            except TlsRefusedError as error:
                self._refuse(conn, str(error))
                return True
        return True

    # --- what goes out ---------------------------------------------------------------------

    def _flow(self, conn: _Connection) -> None:
        """Send what waits, and read where there is room."""
        if conn not in self._connections:
            return
        if not _send(conn.aggregator, conn.to_aggregator):
            self._drop(conn)
            return
        if conn.near is not None and not _send(conn.near, conn.to_near):
            self._hang_up(conn)
            conn.left_at = self._clock()
        self._expect(
            conn,
            conn.aggregator,
            self._from_aggregator,
            _interest(conn.to_near, conn.to_aggregator),
        )
        if conn.near is not None:
            self._expect(
                conn, conn.near, self._from_controller, _interest(conn.to_aggregator, conn.to_near)
            )

    def _expect(
        self,
        conn: _Connection,
        end: socket.socket,
        then: Callable[[_Connection, int], None],
        events: int,
    ) -> None:
        """Call ``then`` for ``events`` on one end of a connection; 0 is never."""
        before = conn.events.get(end, 0)
        conn.events[end] = events
        if before == events:
            return
        if not events:
            self._selector.unregister(end)
        elif before:
            self._selector.modify(end, events, partial(then, conn))
        else:
            self._selector.register(end, events, partial(then, conn))

    def _forget(self, conn: _Connection, end: socket.socket) -> None:
        if conn.events.pop(end, 0):
            self._selector.unregister(end)
        end.close()

    def _hang_up(self, conn: _Connection) -> None:
        """Close the controller's end; drop unfinished messages."""
        if conn.near is not None:
            self._forget(conn, conn.near)
            conn.near = None
        conn.said.clear()
        conn.to_near.clear()
        if conn in self._connections:
            self._flow(conn)

    def _drop(self, conn: _Connection) -> None:
        if conn not in self._connections:
            return
        self._connections.discard(conn)
        self._unproven.pop(conn, None)
        self._hang_up(conn)
        self._forget(conn, conn.aggregator)


@contextmanager
def relayed(listener: socket.socket, speech: Speech) -> Iterator[Listener]:
    """Yield a listener that hands over the connections of ``listener`` within this process.

    For a controller without a parent: a thread relays, and terminates TLS.
    """
    if speech.context is None:
        yield listener
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    relay = Relay(listener, speech=speech)
    relay.attach(ours)
    over, end = os.pipe()
    leaving = threading.Event()
    relay.watch(over, leaving.set)

    def run() -> None:
        while not leaving.is_set():
            relay.turn(None)

    thread = threading.Thread(target=run, name="openflow-relay", daemon=True)
    thread.start()
    try:
        yield HandoverListener(theirs, listener.getsockname()[:2])
    finally:
        os.close(end)
        thread.join()
        relay.detach()
        relay.close()
        os.close(over)


def _interest(other_waits: bytearray, waits: bytearray) -> int:
    """Read while the other side keeps up, write while something waits; one of the two always."""
    read = selectors.EVENT_READ if len(other_waits) < MOST_WAITING_BYTES else 0
    write = selectors.EVENT_WRITE if waits else 0
    return read | write


def _send(sock: socket.socket, waiting: bytearray) -> bool:
    """Send as much as there is room for; False when the peer is gone."""
    while waiting:
        try:
            sent = sock.send(waiting)
        except BlockingIOError:
            return True
        except OSError:
            return False
        del waiting[:sent]
    return True
