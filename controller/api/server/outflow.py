"""What of an answer its reader has not taken yet, as the kernel knows it.

The kernel's figures hold for plain and TLS connections alike, and they count what buffers on the
way hide: the transport's buffer may be empty although the peer has taken nothing.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from dataclasses import dataclass

SEND_S = 15.0
"""Longest time in which a reader may take less than ``SEND_LEAST`` bytes of what waits for it."""
SEND_LEAST = 16 * 2**10
SEND_BUFFER = 128 * 2**10
"""Bytes that the kernel keeps for a reader; it doubles this for its own overhead."""
_ACKED_AT = 120
"""Offset of ``tcpi_bytes_acked`` (u64) in ``struct tcp_info``, Linux 4.1 and later."""
_INFO_BYTES = 128


@dataclass(slots=True, frozen=True)
class Outflow:
    """Bytes that the peer has acknowledged so far, and bytes that it has not."""

    taken: int
    waiting: int


@dataclass(slots=True, frozen=True)
class Reading:
    """A reader's task: to take everything up to ``goal`` bytes; it has had since ``since``."""

    goal: int
    since: float


def bound(connection: socket.socket) -> None:
    """Bound what the kernel keeps for a reader, and for how long once the connection is closed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        user_timeout_ms = int(SEND_S * 1000)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, user_timeout_ms)


def reset_at_close(connection: socket.socket) -> None:
    """Let the kernel drop at once what it keeps for the reader, when the socket is closed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def outflow(connection: socket.socket) -> Outflow:
    """Ask the kernel. OSError for a socket that is closed."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    queued = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    return Outflow(struct.unpack_from("Q", info, _ACKED_AT)[0], struct.unpack("i", queued)[0])


def followed(reading: Reading | None, flow: Outflow, now: float) -> Reading | None:
    """Return the task of a reader after a look at its connection; None when nothing waits.

    A new task begins when the last one is done, so a reader that follows a stream over a slow
    path is never late although something is always on its way.
    """
    if not flow.waiting:
        return None
    if reading is not None and flow.taken < reading.goal:
        return reading
    return Reading(flow.taken + min(flow.waiting, SEND_LEAST), now)
