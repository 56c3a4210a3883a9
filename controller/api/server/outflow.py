"""Measures how much of an answer its reader has not taken, from the kernel's counters.

They hold for plain and TLS connections alike, and they include all buffers on the way: the
transport's buffer may be empty although the peer has taken nothing.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from dataclasses import dataclass

SEND_S = 15.0
"""A reader must take ``SEND_LEAST`` bytes, or all that are waiting, within this time."""
SEND_LEAST = 16 * 2**10
SEND_BUFFER = 128 * 2**10
"""Bytes that the kernel buffers for a reader; it doubles this for its own overhead."""
_ACKED_AT = 120
"""Offset of ``tcpi_bytes_acked`` (u64) in ``struct tcp_info``, Linux 4.1 and later."""
_INFO_BYTES = 128


@dataclass(slots=True, frozen=True)
class Outflow:
    """Bytes that the peer has acknowledged so far, and bytes that it has not."""

    taken: int
    waiting: int


@dataclass(slots=True, frozen=True)
class ReadGoal:
    """A reader's task since ``since``: to take all bytes up to ``goal``."""

    goal: int
    since: float


def bound(connection: socket.socket) -> None:
    """Limit what the kernel buffers for a reader, and for how long after the close."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        user_timeout_ms = int(SEND_S * 1000)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, user_timeout_ms)


def reset_at_close(connection: socket.socket) -> None:
    """Make the kernel drop the reader's buffer when the socket is closed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def outflow(connection: socket.socket) -> Outflow:
    """Read the kernel's counters. OSError for a closed socket."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    queued = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    return Outflow(struct.unpack_from("Q", info, _ACKED_AT)[0], struct.unpack("i", queued)[0])


def followed(reading: ReadGoal | None, flow: Outflow, now: float) -> ReadGoal | None:
    """Return the present task of a reader; None if no bytes are waiting.

    A new task begins when the last one is complete, so the reader of a stream over a slow path is
    never late although bytes are always in flight.
    """
    if not flow.waiting:
        return None
    if reading is not None and flow.taken < reading.goal:
        return reading
    return ReadGoal(flow.taken + min(flow.waiting, SEND_LEAST), now)
