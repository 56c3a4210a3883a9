"""The aggregators' connections, kept by a process that outlives the controller.

A switch whose connection breaks waits before it calls again (Open vSwitch until the next whole
second, ``lib/rconn.c``), longer than a controller needs to come back. So the keeper
(``controller.daemon.keeper``) holds the switches' connections and relays whole OpenFlow messages
to the controller over a socket pair each. When the controller dies, what it had begun to say is
dropped at the last whole message, echo requests are answered here, and everything else a switch
says is dropped: its heir asks afresh. The heir gets a new pair for every connection that stands,
with the switch's own hello as first message, so that it sees a switch that has just called.

TLS ends here too, for its state cannot be handed over: what goes over the pairs is plain, and
the controller is told which certificate was shown. A connection whose handshake is not over is
not handed over yet; both its duration and the number of such connections are limited.

Understands message lengths, hello and echo (OpenFlow 1.3.5 §7.1, §7.5.1, §7.5.2), nothing else;
who may stay is the controller's to say. One thread, no blocking call but ``turn``.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from controller.base.token_bucket import TokenBucket
from controller.daemon.handover import HandedOver
from controller.devices.openflow.session.listen import Listener
from controller.devices.openflow.session.peer import Peer
from controller.devices.openflow.session.tls import CLIENT_HELLO, Secured, Speech, TlsRefusedError
from controller.devices.openflow.wire.framing import BadFrameError, take_frames

log = structlog.get_logger(__name__)

HELLO, ECHO_REQUEST, ECHO_REPLY = 0, 2, 3
MAX_LINES = 8192
"""Switch connections at once, as far as the limit of open files allows; more are closed."""
SPARE_FILES = 128
MOST_WAITING_BYTES = 4 << 20
"""Of one direction of one connection; then its other end is not read until some have left."""
DOUBT_S = 0.5
"""After the controller's end of one connection has closed: time in which its death would show."""
HANDSHAKE_S = 10.0
"""For the TLS handshake of one connection."""
WORDS_RATE = 10.0
"""Lines of the log a second about handshakes that failed."""
MAX_HANDSHAKES = 512
"""TLS handshakes at once; one more ends the oldest one of the address that has the most."""
_RECV_BYTES = 1 << 16
PLAIN = Speech()


@dataclass(slots=True, eq=False)
class _Line:
    """One switch's connection, and the controller's end of it while there is a controller."""

    switch: socket.socket
    peer: Peer
    tls: Secured | None = None
    near: socket.socket | None = None
    heard: bytearray = field(default_factory=bytearray)
    """From the switch, up to an unfinished message."""
    said: bytearray = field(default_factory=bytearray)
    """From the controller, up to an unfinished message."""
    to_switch: bytearray = field(default_factory=bytearray)
    to_near: bytearray = field(default_factory=bytearray)
    hello: bytes = b""
    """What the switch began with."""
    greeted: bool = False
    """The switch got a hello; it gets no second one."""
    left_at: float | None = None
    """Since when the controller's end is closed, while it is not known why."""
    events: dict[socket.socket, int] = field(default_factory=dict)
    """What the selector waits for on each end."""


class Front:
    """Accepts switches on ``listener`` and joins each to the controller there is."""

    def __init__(
        self,
        listener: socket.socket,
        clock: Callable[[], float] = time.monotonic,
        speech: Speech = PLAIN,
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._speech = speech
        self._words = TokenBucket(WORDS_RATE, WORDS_RATE)
        self._control: socket.socket | None = None
        self._lines: set[_Line] = set()
        self._unproven: dict[_Line, float] = {}
        """Connections in their TLS handshake, oldest first, and when it has to be over."""
        self._owed: deque[_Line] = deque()
        """Connections that the controller has no room for in its queue yet."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = max(1, min(MAX_LINES, (files - SPARE_FILES) // 2))
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def attach(self, control: socket.socket) -> None:
        """Hand every connection to the controller at the other end of ``control``."""
        control.setblocking(False)
        self._control = control
        for line in self._lines - self._unproven.keys():
            self._hand_over(line)

    def detach(self) -> None:
        """The controller has died: keep the switches, forget what it had not finished."""
        if self._control is not None:
            if self._owed:
                self._selector.unregister(self._control)
                self._owed.clear()
            self._control.close()
            self._control = None
        for line in list(self._lines):
            if line.near is not None:
                self._hear(line, line.near)  # what it had said before its death counts
            self._hang_up(line)
            line.left_at = None

    def close(self) -> None:
        """Close every connection, and what the selector holds; the listener is the caller's."""
        for line in list(self._lines):
            self._drop(line)
        self._selector.close()

    def disown(self) -> None:
        """In a forked child: close this process's copies of everything, disturbing nobody."""
        for line in self._lines:
            line.switch.close()
            if line.near is not None:
                line.near.close()
        if self._control is not None:
            self._control.close()
        self._selector.close()
        self._listener.close()

    def watch(self, fd: int, then: Callable[[], None]) -> None:
        """Call ``then`` in a turn in which ``fd`` is readable."""
        self._selector.register(fd, selectors.EVENT_READ, lambda _events: then())

    def unwatch(self, fd: int) -> None:
        """Stop watching ``fd``."""
        self._selector.unregister(fd)

    def turn(self, timeout_s: float | None) -> None:
        """Wait for something to do, at most ``timeout_s`` seconds, and do it."""
        ends = [line.left_at + DOUBT_S for line in self._lines if line.left_at is not None]
        ends += list(self._unproven.values())[:1]
        if ends:
            until = max(0.0, min(ends) - self._clock())
            timeout_s = until if timeout_s is None else min(timeout_s, until)
        looked_at = self._clock()
        for key, events in self._selector.select(timeout_s):
            current = self._selector.get_map().get(key.fd)
            if current is not None and current.fileobj is key.fileobj:  # no earlier one closed it
                current.data(events)
        # Before this look, for a machine that stood still since may not have shown the death yet.
        for line in list(self._lines):
            if line.left_at is not None and looked_at >= line.left_at + DOUBT_S:
                self._drop(line)  # the controller lives and has hung up on this switch
        for line in [line for line, end in self._unproven.items() if looked_at >= end]:
            self._refuse(line, "the TLS handshake takes too long")

    def _accept(self, _events: int) -> None:
        try:
            switch, address = self._listener.accept()
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                log.warning("openflow_accept_failed", error=str(error))
            return
        peer = Peer(str(address[0]), int(address[1]))
        if len(self._lines) >= self._most:
            log.warning("openflow_too_many_connections", peer=str(peer))
            switch.close()
            return
        switch.setblocking(False)
        with contextlib.suppress(OSError):
            switch.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = _Line(switch, peer)
        self._lines.add(line)
        if self._speech.context is None:
            self._hand_over(line)
        else:
            self._make_room()
            self._unproven[line] = self._clock() + HANDSHAKE_S
        self._flow(line)

    def _make_room(self) -> None:
        """End one handshake when there are too many: not of those who make just a few."""
        if len(self._unproven) < MAX_HANDSHAKES:
            return
        ((host, _),) = Counter(line.peer.host for line in self._unproven).most_common(1)
        oldest = next(line for line in self._unproven if line.peer.host == host)
        self._refuse(oldest, "too many TLS handshakes at once")

    def _refuse(self, line: _Line, why: str) -> None:
        if line not in self._unproven:
            log.info("openflow_connection_ended", peer=str(line.peer), reason=why)
        elif self._words.take(self._clock()):
            log.warning("openflow_connection_refused", peer=str(line.peer), reason=why)
        if line.tls is not None:  # the alert, as far as there is room for it
            line.to_switch += line.tls.outgoing()
            _send(line.switch, line.to_switch)
        self._drop(line)

    def _hand_over(self, line: _Line) -> None:
        if self._control is None:
            return
        if self._owed or not self._given(line, self._control):
            if not self._owed:
                self._selector.register(self._control, selectors.EVENT_WRITE, self._pay)
            self._owed.append(line)

    def _pay(self, _events: int) -> None:
        control = self._control
        while self._owed and control is not None:
            line = self._owed[0]
            if line in self._lines and not self._given(line, control):
                return
            self._owed.popleft()
        if control is not None:
            self._selector.unregister(control)

    def _given(self, line: _Line, control: socket.socket) -> bool:
        """Give the controller its end of a new pair; False when its queue is full."""
        near, far = socket.socketpair()
        with far:
            try:
                socket.send_fds(control, [line.peer.pack()], [far.fileno()])
            except BlockingIOError:
                near.close()
                return False
            except OSError as error:  # it dies at this moment; its heir gets the connection
                log.info("openflow_not_handed_over", peer=str(line.peer), error=str(error))
                near.close()
                return True
        near.setblocking(False)
        line.near, line.left_at = near, None
        line.to_near = bytearray(line.hello)
        self._flow(line)
        return True

    # --- what comes in ---------------------------------------------------------------------

    def _switch(self, line: _Line, events: int) -> None:
        if events & selectors.EVENT_READ:
            try:
                data = line.switch.recv(_RECV_BYTES)
            except BlockingIOError:
                data = None
            except OSError:
                data = b""
            if data == b"":
                self._drop(line)
                return
            try:
                self._take(line, self._said(line, data or b""))
            except (BadFrameError, TlsRefusedError) as error:
                self._refuse(line, str(error))
                return
        self._flow(line)

    def _said(self, line: _Line, data: bytes) -> bytes:
        """Return what the switch said in these bytes off the wire. TlsRefusedError."""
        if line in self._unproven and line.tls is None and data:
            context = self._speech.context
            if data[0] == CLIENT_HELLO and context is not None:
                line.tls = Secured(context)
            elif self._speech.plain:
                self._proven(line)
            else:
                raise TlsRefusedError("it does not speak TLS")
        if line.tls is None:
            return data
        said = line.tls.take(data)
        line.to_switch += line.tls.outgoing()
        if line in self._unproven and line.tls.certificate is not None:
            line.peer = replace(line.peer, certificate=line.tls.certificate)
            self._proven(line)
        return said

    def _proven(self, line: _Line) -> None:
        del self._unproven[line]
        self._hand_over(line)

    def _say(self, line: _Line, data: bytes | bytearray) -> None:
        if line.tls is None:
            line.to_switch += data
        elif data:
            line.tls.say(data)
            line.to_switch += line.tls.outgoing()

    def _take(self, line: _Line, data: bytes) -> None:
        """Pass whole messages on, or answer for a controller that is not there."""
        line.heard += data
        frames = list(take_frames(line.heard))
        if not line.hello and frames:
            line.hello = frames[0]
        if line.near is not None:
            line.to_near += b"".join(frames)
            return
        for frame in frames:
            if frame[1] == ECHO_REQUEST and line.greeted:
                self._say(line, bytes((frame[0], ECHO_REPLY)) + frame[2:])

    def _near(self, line: _Line, events: int) -> None:
        near = line.near
        if near is None:
            return
        if events & selectors.EVENT_READ and not self._hear(line, near):
            self._hang_up(line)
            line.left_at = self._clock()
        self._flow(line)

    def _hear(self, line: _Line, near: socket.socket) -> bool:
        """Take what the controller says; False at its end."""
        while len(line.to_switch) < MOST_WAITING_BYTES:
            try:
                data = near.recv(_RECV_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            line.said += data
            said = bytearray()
            for frame in take_frames(line.said):
                if frame[1] == HELLO and line.greeted:
                    continue
                line.greeted |= frame[1] == HELLO
                said += frame
            try:
                self._say(line, said)
            except TlsRefusedError as error:
                self._refuse(line, str(error))
                return True
        return True

    # --- what goes out ---------------------------------------------------------------------

    def _flow(self, line: _Line) -> None:
        """Send what waits, and listen where there is room."""
        if line not in self._lines:
            return
        if not _send(line.switch, line.to_switch):
            self._drop(line)
            return
        if line.near is not None and not _send(line.near, line.to_near):
            self._hang_up(line)
            line.left_at = self._clock()
        self._expect(line, line.switch, self._switch, _interest(line.to_near, line.to_switch))
        if line.near is not None:
            self._expect(line, line.near, self._near, _interest(line.to_switch, line.to_near))

    def _expect(
        self, line: _Line, end: socket.socket, then: Callable[[_Line, int], None], events: int
    ) -> None:
        """Have ``then`` called for ``events`` on one end of a line; never when there are none."""
        before = line.events.get(end, 0)
        line.events[end] = events
        if before == events:
            return
        if not events:
            self._selector.unregister(end)
        elif before:
            self._selector.modify(end, events, partial(then, line))
        else:
            self._selector.register(end, events, partial(then, line))

    def _forget(self, line: _Line, end: socket.socket) -> None:
        if line.events.pop(end, 0):
            self._selector.unregister(end)
        end.close()

    def _hang_up(self, line: _Line) -> None:
        """Close the controller's end, with everything that is only half said."""
        if line.near is not None:
            self._forget(line, line.near)
            line.near = None
        line.said.clear()
        line.to_near.clear()
        if line in self._lines:
            self._flow(line)

    def _drop(self, line: _Line) -> None:
        if line not in self._lines:
            return
        self._lines.discard(line)
        self._unproven.pop(line, None)
        self._hang_up(line)
        self._forget(line, line.switch)


@contextmanager
def relayed(listener: socket.socket, speech: Speech) -> Iterator[Listener]:
    """Return what hands over the connections of ``listener`` in this very process.

    For a controller without a parent: TLS is then spoken on a thread of its own.
    """
    if speech.context is None:
        yield listener
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    front = Front(listener, speech=speech)
    front.attach(ours)
    over, end = os.pipe()
    leaving = threading.Event()
    front.watch(over, leaving.set)

    def run() -> None:
        while not leaving.is_set():
            front.turn(None)

    thread = threading.Thread(target=run, name="openflow-front", daemon=True)
    thread.start()
    try:
        yield HandedOver(theirs, listener.getsockname()[:2])
    finally:
        os.close(end)
        thread.join()
        front.detach()
        front.close()
        os.close(over)


def _interest(other_waits: bytearray, waits: bytearray) -> int:
    """Read while the other side keeps up, write while something waits; never nothing at all."""
    read = selectors.EVENT_READ if len(other_waits) < MOST_WAITING_BYTES else 0
    write = selectors.EVENT_WRITE if waits else 0
    return read | write


def _send(sock: socket.socket, waiting: bytearray) -> bool:
    """Send as much as there is room for; False when the far end is gone."""
    while waiting:
        try:
            sent = sock.send(waiting)
        except BlockingIOError:
            return True
        except OSError:
            return False
        del waiting[:sent]
    return True
