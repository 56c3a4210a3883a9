"""Collects garbage in short turns, so that no collection holds the event loop for long.

Python's full collection examines every object of the process and starts at any allocation: a fifth
of a second at a site of 4,096 endpoints. Here it never starts by itself. Young objects are
collected as usual. What survives is counted once a second, and examined whenever another batch
has come. When that becomes long, all objects are frozen (``gc.freeze``): a frozen object is freed
when its last reference goes, but not examined again. So cycles that were in use at that moment,
such as those of open TLS connections, stay when they end. They are found when the process has three
times the memory in use after the last full collection, which bounds them. All of this waits while
endpoints are dark, unless it is six times the memory.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import structlog

from base import clock

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 1.0
BATCH = 20_000
"""So many more old objects are worth an examination of them all."""
ENOUGH = 30_000
"""When more than these survive it, they are frozen."""
TOO_MANY = 70_000
"""More are frozen unexamined: so many take 10 to 35 ms."""
GROWTH = 3
"""A full collection is due at so many times the memory in use after the last one."""
PATIENCE = 6
"""It does not wait for endpoints that are dark at so many times that memory."""
NEVER = 1 << 30


class Collector(Protocol):
    """What is used of the module ``gc``."""

    def get_threshold(self) -> tuple[int, int, int]:
        """Return after how many allocations and younger collections each generation's begins."""

    def set_threshold(self, young: int, middle: int, old: int, /) -> None:
        """Set what ``get_threshold`` returns."""

    def get_objects(self, generation: int) -> Sequence[object]:
        """Return the objects of a generation; frozen ones are in none."""

    def collect(self) -> int:
        """Examine all but frozen objects; return how many were garbage."""

    def freeze(self) -> None:
        """Freeze all objects."""

    def unfreeze(self) -> None:
        """Make frozen objects old ones."""

    def enable(self) -> None:
        """Let collections start by themselves."""


class Memory(Protocol):
    """The memory of this process."""

    def used(self) -> int:
        """Return the bytes that are its own."""

    def trim(self) -> None:
        """Give unused memory back to the system."""


class OwnMemory:
    """The memory of this process as Linux counts it."""

    def __init__(self) -> None:
        self._malloc_trim = ctypes.CDLL(None).malloc_trim

    def used(self) -> int:
        """Return the anonymous memory: mapped files, such as the history, are not in it."""
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024

    def trim(self) -> None:
        """Have the C library return free pages (malloc_trim(3))."""
        self._malloc_trim(0)


class Garbage:
    """Collects the garbage of this process."""

    def __init__(self, collector: Collector, memory: Memory, moving: Callable[[], bool]) -> None:
        """Freeze what exists, and let young collections begin.

        ``moving`` returns whether endpoints may be dark.
        """
        self._collector = collector
        self._memory = memory
        self._moving = moving
        collector.freeze()
        young, middle, _ = collector.get_threshold()
        collector.set_threshold(young, middle, NEVER)
        collector.enable()
        self._examined = 0
        """Old objects that were left after the last examination."""
        self._after_full = memory.used()

    async def keep(self) -> None:
        """Check once a second; does not return."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.check()

    def check(self) -> None:
        """Examine what is old, if that is worth it; freeze it when there is much."""
        if self._moving() and not self._grown(PATIENCE):
            return
        if self._grown(GROWTH):
            self._memory.trim()
            if self._grown(GROWTH):
                self._collect_all()
                return
        old = self._old()
        if old > TOO_MANY:
            self._collector.freeze()
        elif old >= self._examined + BATCH:
            self._collector.collect()
            if self._old() > ENOUGH:
                self._collector.freeze()
        else:
            self._examined = min(self._examined, old)
            return
        self._examined = self._old()

    def _old(self) -> int:
        return len(self._collector.get_objects(2))

    def _grown(self, times: int) -> bool:
        return self._memory.used() >= times * self._after_full

    def _collect_all(self) -> None:
        began = clock.monotonic()
        self._collector.unfreeze()
        garbage = self._collector.collect()
        self._collector.freeze()
        self._memory.trim()
        self._after_full, self._examined = self._memory.used(), 0
        log.info(
            "garbage_collected",
            garbage=garbage,
            bytes_left=self._after_full,
            held_s=round(clock.monotonic() - began, 3),
        )
