"""A connection with time-outs for everything, whose sending can be stopped by its gate.

The socket never blocks. Time is the gate's, which does not pass while a job is frozen.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from container_mgr.transfers.gate import SendGate, reset

IDLE_S = 30.0
"""The connection of a peer that neither sends nor reads a byte for so long is closed."""
CONNECT_S = 5.0
_STEP_MS = 500
"""How often a waiting thread reads the clock of its gate, in milliseconds."""
_SLICE = 256 << 10
"""The most bytes of one write, while the gate cannot close."""


class Channel:
    """One connection. Belongs to one thread, but for :meth:`abort`."""

    def __init__(self, one: socket.socket, gate: SendGate) -> None:
        self._socket = one
        self._gate = gate
        self._aborted = False
        one.setblocking(False)
        with suppress(OSError):  # a test's pair of sockets is not TCP
            # A small request behind another would wait for an acknowledgement.
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        gate.add(one)

    @property
    def is_plain(self) -> bool:
        """Whether files can be sent without reading them (sendfile)."""
        return not isinstance(self._socket, ssl.SSLSocket)

    def deadline(self, seconds: float) -> float:
        """Return the time, by the gate's clock, in so many seconds."""
        return self._gate.clock() + seconds

    def close(self) -> None:
        """End the connection."""
        self._aborted = True
        self._gate.discard(self._socket)
        if not self._gate.is_open:
            reset(self._socket)
        self._socket.close()

    def abort(self) -> None:
        """End the connection from another thread; its own thread gets ConnectionAbortedError."""
        self._aborted = True
        if not self._gate.is_open:
            reset(self._socket)  # an end in good order waits for an acknowledgement
            return
        try:
            # SSLSocket's own method would drop the state that the other thread uses.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except (OSError, ValueError):
            return

    def secure(self, context: ssl.SSLContext, name: str | None, deadline: float) -> None:
        """Speak TLS from now on: as a client of a server with this ``name``, or as a server.

        Raises OSError, of which SSLError is one.
        """
        plain = self._socket
        self._gate.discard(plain)
        self._socket = context.wrap_socket(
            plain,
            server_side=name is None,
            server_hostname=name,
            do_handshake_on_connect=False,
            suppress_ragged_eofs=False,
        )
        self._gate.add(self._socket)
        self._do(self._handshake, deadline, select.POLLIN)

    def peer_names(self) -> list[str]:
        """Return the DNS names in the certificate of a peer that speaks TLS."""
        found = self._socket.getpeercert() if isinstance(self._socket, ssl.SSLSocket) else None
        alternatives = found.get("subjectAltName", ()) if found else ()
        return [str(one[1]) for one in alternatives if one[0] == "DNS"]

    def connect(self, address: tuple[str, int], deadline: float) -> None:
        """Connect. Raises OSError."""
        code = self._push(partial(self._socket.connect_ex, address), deadline)
        if code == errno.EINPROGRESS:
            self._wait(select.POLLOUT, min(deadline, self.deadline(CONNECT_S)))
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))

    def receive(self, size: int, deadline: float) -> bytes:
        """Return exactly ``size`` bytes. Raises OSError; ConnectionError at the end."""
        block = bytearray(size)
        self.receive_into(memoryview(block), deadline)
        return bytes(block)

    def receive_into(self, view: memoryview, deadline: float) -> None:
        """Fill ``view``. Raises OSError; ConnectionError at the end."""
        while view:
            view = view[self.receive_some(view, deadline) :]

    def receive_some(self, view: memoryview, deadline: float) -> int:
        """Receive 1 byte or more; return how many. Raises OSError; ConnectionError at the end."""
        got = self._do(partial(self._socket.recv_into, view), deadline, select.POLLIN)
        if not got:
            raise ConnectionResetError("the connection ended too early")
        return got

    def send(self, block: bytes | memoryview, deadline: float) -> None:
        """Send all. Raises OSError."""
        view = memoryview(block)
        while view:
            sent = self._push(partial(self._socket.send, view[:_SLICE]), deadline)
            view = view[sent:]

    def send_file(self, descriptor: int, offset: int, size: int, deadline: float) -> None:
        """Send a piece of a file. Raises OSError; ConnectionError where the file ends too early."""
        end = offset + size
        while offset < end:
            count = min(end - offset, _SLICE)
            if self.is_plain:
                to = self._socket.fileno()
                sent = self._push(partial(os.sendfile, to, descriptor, offset, count), deadline)
            else:
                block = os.pread(descriptor, count, offset)
                sent = len(block)
                self.send(block, deadline)
            if not sent:
                raise ConnectionAbortedError("a file became shorter while it was sent")
            offset += sent

    def _handshake(self) -> int:
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.do_handshake()
        return 1

    def _push(self, work: Callable[[], int], deadline: float) -> int:
        def gated() -> int:
            with self._gate.sending():
                return work()

        return self._do(gated, deadline, select.POLLOUT)

    def _do(self, work: Callable[[], int], deadline: float, events: int) -> int:
        until = min(deadline, self._gate.clock() + IDLE_S)
        while True:
            if self._aborted:
                raise ConnectionAbortedError("the transfer was ended")
            try:
                return work()
            except (BlockingIOError, InterruptedError):
                self._wait(events, until)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN, until)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, until)

    def _wait(self, events: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._socket, events)
        while not poll.poll(_STEP_MS):
            if self._aborted:
                raise ConnectionAbortedError("the transfer was ended")
            if self._gate.clock() >= deadline:
                raise TimeoutError("the other end does not answer")
