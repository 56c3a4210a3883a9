"""Controls when a transfer may send: never while its rank is frozen, and no faster than its pace.

A freeze waits until all that was sent from the namespace is acknowledged (ADR 0027), and the
sockets of transfers count. So they stop first, and what they sent is acknowledged before.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from base import clock

SETTLE_S = 0.15
"""A connection whose bytes are not acknowledged this long after a pause is reset."""
_POLL_S = 0.002
_WAIT_S = 0.5
_CONNECTING = (2, 3)
"""TCP_SYN_SENT and TCP_SYN_RECV of the kernel's tcp_states.h: a handshake is repeated as well."""
_CLOSED = 7
_LIBC = ctypes.CDLL(None, use_errno=True)


class SendGate:
    """Belongs to all threads. Each socket sends within :meth:`sending`, and never waits there."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._sockets: set[socket.socket] = set()
        self._closed_at: float | None = None
        self._paused_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the sockets may send."""
        return self._closed_at is None

    def clock(self) -> float:
        """Return seconds that do not pass while the gate is closed: time-outs are counted so."""
        closed_at, paused = self._closed_at, self._paused_s
        return (clock.monotonic() if closed_at is None else closed_at) - paused

    def add(self, one: socket.socket) -> None:
        """Count a socket as one that may send."""
        with self._lock:
            self._sockets.add(one)

    def discard(self, one: socket.socket) -> None:
        """Remove a socket, before it is closed."""
        with self._lock:
            self._sockets.discard(one)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Keep the gate from closing while the body sends something without waiting.

        Raises BlockingIOError when it stays closed: try again.
        """
        with self._lock:
            if self._closed_at is not None:
                self._lock.wait(_WAIT_S)
            if self._closed_at is not None:
                raise BlockingIOError
            yield

    def close(self, settle_s: float = SETTLE_S) -> None:
        """Stop all; return when all is acknowledged or reset. Blocks ``settle_s`` at most."""
        end = clock.monotonic() + settle_s
        if self._closed_at is None:
            self._closed_at = clock.monotonic()
        # Who sends now has the lock for one write, which reads a file and may be slow.
        locked = self._lock.acquire(timeout=settle_s)
        try:
            waiting = list(self._sockets)
            while waiting := [one for one in waiting if _is_unsettled(one)]:
                if clock.monotonic() >= end:
                    break
                clock.sleep(_POLL_S)
            for one in waiting if locked else tuple(self._sockets):
                reset(one)
        finally:
            if locked:
                self._lock.release()

    def open(self) -> None:
        """Allow the sockets to send again."""
        with self._lock:
            if self._closed_at is not None:
                self._paused_s += clock.monotonic() - self._closed_at
                self._closed_at = None
            self._lock.notify_all()


def reset(one: socket.socket) -> None:
    """End a connection from any thread; what it sent is not repeated. Its owner closes it.

    ``connect`` to AF_UNSPEC dissolves a connection and sends a reset (connect(2)).
    """
    with suppress(OSError):
        descriptor = one.fileno()
        if descriptor >= 0:
            _LIBC.connect(descriptor, struct.pack("=H14x", socket.AF_UNSPEC), 16)


def _is_unsettled(one: socket.socket) -> bool:
    try:
        state = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        if state in _CONNECTING or state == _CLOSED:
            return state != _CLOSED
        # SIOCOUTQ is TIOCOUTQ: bytes that are not acknowledged (tcp(7)).
        queued = fcntl.ioctl(one.fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError):
        return False
    return queued != bytes(4)


class Pacer:
    """Passes at most ``burst + rate * t`` bytes, and one block more, in any time ``t``.

    This is the generic cell rate algorithm (ITU-T I.371). A rate of 0 means unlimited.
    """

    def __init__(self, bytes_per_s: int, burst: int) -> None:
        self._rate = bytes_per_s
        self._burst_s = burst / bytes_per_s if bytes_per_s else 0.0
        self._due = float("-inf")

    def reserve(self, size: int, now: float) -> float:
        """Return the seconds to wait before ``size`` bytes are sent; they count from now on."""
        if not self._rate:
            return 0.0
        due = max(self._due, now)
        self._due = due + size / self._rate
        return max(0.0, due - self._burst_s - now)
