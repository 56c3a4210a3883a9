"""Collects garbage in short turns, so that no collection holds the event loop for long.

Python's full collection examines every object of the process and starts at any allocation: a fifth
of a second at a site of 4,096 endpoints. Here it never starts by itself. Young objects are
collected as usual. What survives is looked at once a second; once it is a batch, it is examined
one more time and then frozen (``gc.freeze``): a frozen object is freed when its last reference
goes, but not examined again. Garbage in cycles among frozen objects, of which the controller makes
next to none, is found when memory has grown fourfold since the last full collection. That bounds
it, and a site that only fills up to its limits does not get there. All of this waits while
endpoints are dark, unless memory has grown eightfold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from base import clock

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 1.0
BATCH = 20_000
"""So many old objects are worth an examination."""
TOO_MANY = 100_000
"""More are frozen unexamined: so many take 10 to 35 ms."""
GROWTH = 4
"""A full collection is due at so many times the memory in use after the last one."""
PATIENCE = 8
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


class Garbage:
    """Collects the garbage of this process."""

    def __init__(
        self, collector: Collector, memory: Callable[[], int], moving: Callable[[], bool]
    ) -> None:
        """``memory`` counts the blocks in use; ``moving`` says whether endpoints may be dark."""
        self._collector = collector
        self._memory = memory
        self._moving = moving
        collector.freeze()
        young, middle, _ = collector.get_threshold()
        collector.set_threshold(young, middle, NEVER)
        collector.enable()
        self._after_full = memory()

    async def keep(self) -> None:
        """Look once a second; does not return."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        """Examine and freeze what is old, if that is worth it."""
        memory = self._memory()
        if self._moving() and memory < PATIENCE * self._after_full:
            return
        if memory >= GROWTH * self._after_full:
            self._collect_all()
            return
        old = len(self._collector.get_objects(2))
        if old < BATCH:
            return
        if old <= TOO_MANY:
            self._collector.collect()
        self._collector.freeze()

    def _collect_all(self) -> None:
        began = clock.monotonic()
        self._collector.unfreeze()
        garbage = self._collector.collect()
        self._collector.freeze()
        self._after_full = self._memory()
        log.info(
            "garbage_collected",
            garbage=garbage,
            blocks=self._after_full,
            held_s=round(clock.monotonic() - began, 3),
        )
