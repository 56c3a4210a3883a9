"""Signs of life: of the controller's loop to its parent, and of both to the service manager.

A loop that hangs neither dies nor answers, so nothing restarts it. The loop beats once a second;
its parent (``controller.daemon.keeper``) kills a child that is silent for too long, and pings
systemd's watchdog (sd_notify(3), ``WATCHDOG=1``) only while all is well. Without a parent the loop
itself pings systemd. The child also reports to its parent whether a transaction is open; the
report outlives the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

BEAT_EVERY_S = 1.0
BEAT, READY = b".", b"!"
OPEN, CLOSED = b"+", b"-"
"""A transaction is open; none is open any more. The last one of the two counts."""
COMPARE_EVERY_S = 0.05
"""The longest time from the begin of a transaction until the parent has the report."""

Pulse = Callable[[bytes], None]
"""Called with one of the signs above; never blocks, never raises OSError."""


def into(fd: int) -> Pulse:
    """Return a pulse that writes into a pipe, which is made non-blocking."""
    os.set_blocking(fd, False)

    def beat(sign: bytes) -> None:
        with contextlib.suppress(
            OSError
        ):  # full: the parent has enough to read; broken: it is gone
            os.write(fd, sign)

    return beat


def notify(sign: bytes) -> None:
    """Notify the service manager, if any (``NOTIFY_SOCKET``)."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    state = {BEAT: b"WATCHDOG=1", READY: b"READY=1"}.get(sign)
    if not path or state is None:
        return
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager,
    ):
        manager.sendto(state, f"\0{path[1:]}" if path.startswith("@") else path)


async def beat(pulse: Pulse) -> None:
    """Beat for as long as the loop runs."""
    while True:
        pulse(BEAT)
        await asyncio.sleep(BEAT_EVERY_S)


async def report_moving(pulse: Pulse, moving: Callable[[], bool]) -> None:
    """Report at once whether a transaction is open, and then every change."""
    reported: bool | None = None
    while True:
        now = moving()
        if now is not reported:
            pulse(OPEN if now else CLOSED)
            reported = now
        await asyncio.sleep(COMPARE_EVERY_S)
