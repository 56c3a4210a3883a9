"""Finds out from the kernel's socket table whether all that a container sent is acknowledged.

``/proc/PID/net/tcp`` shows the sockets of the process's network namespace. In the column ``tr``
1 means that the retransmission timer runs (proc_net_tcp.rst), which it does exactly while
sent data is unacknowledged. Cutting the light then costs that time-out, and every doubling
of it while it is dark. A full receiver (timer 4) and an idle connection (0, 2) cost nothing. While
the kernel handles an expired timer the column is 0, and ``tx_queue`` is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from base import clock

_NONE, _RETRANSMIT = "00", "01"
_QUEUES, _TIMER = 4, 5
"""Columns of ``tx_queue:rx_queue`` and of ``tr:tm->when``."""
_TABLES = {"TCP": "tcp", "TCP6": "tcp6"}
_UNSEEN = ("UDP", "UDP6", "UDPLITE", "UDPLITE6", "RAW", "RAW6")
_MAX_TABLE = 1 << 22
"""Bytes of a table that are read, some 28,000 sockets; a rank may have as many as it likes."""
_POLL_S = 0.001
"""The interval between two readings of the sockets of frozen processes."""


def settled(pid: int, proc: Path = Path("/proc")) -> bool | None:
    """Return whether all data sent from the network namespace of ``pid`` is acknowledged.

    None when that is unknown: UDP has no acknowledgements, the namespace is gone, or it has
    more sockets than are read.
    """
    net = proc / str(pid) / "net"
    try:
        used = _in_use(net)
        if any(used.get(name) for name in _UNSEEN):
            return None
        # Reading a table walks all sockets of the machine (1 to 2 ms): read only those in use.
        states = [_table(net / table) for name, table in _TABLES.items() if used.get(name)]
    except OSError:
        return None
    return False if False in states else None if None in states else True


async def settle(pids: Iterable[int], limit_s: float, proc: Path = Path("/proc")) -> bool | None:
    """Wait until all data sent from the namespaces of ``pids`` is acknowledged.

    Returns whether it is, after ``limit_s`` at most; None when that is not known. The processes
    are frozen: what is acknowledged stays acknowledged.
    """
    end = clock.monotonic() + limit_s
    waiting = list(pids)
    while True:
        readings = (asyncio.to_thread(settled, pid, proc) for pid in waiting)
        seen = dict(zip(waiting, await asyncio.gather(*readings), strict=True))
        if None in seen.values():
            return None
        waiting = [pid for pid, done in seen.items() if not done]
        if not waiting or clock.monotonic() >= end:
            return not waiting
        await asyncio.sleep(_POLL_S)


def _table(path: Path) -> bool | None:
    """Return whether all sockets of a table are settled; None when it is too long. OSError."""
    with path.open(encoding="ascii") as lines:
        left = _MAX_TABLE - len(lines.readline())
        for line in lines:
            left -= len(line)
            if left < 0:
                return None
            if _is_sending(line.split()):
                return False
    return True


def _is_sending(columns: Sequence[str]) -> bool:
    timer = columns[_TIMER].partition(":")[0]
    return timer == _RETRANSMIT or (
        timer == _NONE and int(columns[_QUEUES].partition(":")[0], 16) > 0
    )


def _in_use(net: Path) -> dict[str, int]:
    """Return the number of sockets of each kind, from ``TCP: inuse 3 orphan 0 …``."""
    lines = (net / "sockstat").read_text(encoding="ascii").splitlines()
    if (net / "sockstat6").exists():  # missing in a kernel without IPv6
        lines += (net / "sockstat6").read_text(encoding="ascii").splitlines()
    found = {}
    for line in lines:
        kind, *words = line.split()
        if words[:1] == ["inuse"]:
            found[kind.rstrip(":")] = int(words[1])
    return found
