"""Samples the counters of ranks' NICs for some seconds, often enough to see their bursts.

A sample costs a file of procfs per rank and tick. The number of ranks in a window follows from the
cost of the last window, so that all windows together stay below one percent of a core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from base import clock
from container_mgr.recordings.bursts import Tick
from container_mgr.values import NIC_IN_CONTAINER

WINDOW_S = 5.0
TICKS = 375
"""Ticks of a window of any length; 75 a second in the shortest."""
EVERY_S = 30.0
CORE_SHARE = 0.01
FIRST_RANKS = 8
_LIMIT = 64 * 1024
_SENT = 8
"""The column of sent bytes in /proc/net/dev, after the name (net/core/net-procfs.c)."""


def sent_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """Return what the NIC in a process's network namespace has sent. OSError, ValueError."""
    with (proc / str(pid) / "net" / "dev").open("rb") as file:
        text = file.read(_LIMIT)
    for line in text.splitlines():
        name, colon, columns = line.partition(b":")
        if colon and name.strip() == NIC_IN_CONTAINER.encode():
            return int(columns.split()[_SENT])
    raise ValueError(f"process {pid} has no {NIC_IN_CONTAINER}")


@dataclass(slots=True)
class NicSampler:
    """Reads the ticks of a window. Run :meth:`sample` in a thread: it lasts a whole window."""

    proc: Path = Path("/proc")
    monotonic: Callable[[], float] = clock.monotonic
    sleep: Callable[[float], None] = clock.sleep
    busy: Callable[[], float] = time.thread_time
    most: int = field(default=FIRST_RANKS, init=False)
    """Ranks that the next window may watch."""

    def sample(
        self,
        pids: Sequence[int],
        window_s: float = WINDOW_S,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[list[Tick]]:
        """Return the ticks of each process, in order; empty for one that has ended."""
        seen: list[list[Tick]] = [[] for _ in pids]
        gone: set[int] = set()
        began, used = self.monotonic(), self.busy()
        for tick in range(TICKS + 1):
            for position, pid in enumerate(pids):
                if position in gone:
                    continue
                try:
                    sent = sent_bytes(pid, self.proc)
                except (OSError, ValueError, IndexError):
                    gone.add(position)
                    continue
                seen[position].append(Tick(self.monotonic(), sent))
            if stop() or len(gone) == len(pids):
                break
            self.sleep(max(0.0, began + (tick + 1) * window_s / TICKS - self.monotonic()))
        used = (self.busy() - used) / max(1, len(pids))
        if pids and used > 0:
            self.most = max(1, int(CORE_SHARE * EVERY_S / used))
        return [[] if position in gone else one for position, one in enumerate(seen)]
