"""Divides long work on the loop into short slices; devices and other requests run in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self, TypeVar
from weakref import WeakKeyDictionary

from base import clock

SLICE_S = 0.005
"""The longest time that the loop is blocked, plus the time of one item."""

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")
_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class Turns:
    """Measures how long one piece of work blocks the loop; use it as a context, never nested.

    All work that takes more than one slice waits in one queue: a hundred large answers at once
    block the loop between two other requests no longer than one does.
    """

    def __init__(self) -> None:
        self._began = clock.monotonic()
        self._queue: asyncio.Lock | None = None
        """Held from the second slice on."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release()

    async def breathe(self) -> None:
        """Let other tasks run after a slice."""
        if clock.monotonic() - self._began < SLICE_S:
            return
        await asyncio.sleep(
            0
        )  # before the release: the next in the queue starts one turn of the loop later
        self._release()
        queue = _queues.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        await queue.acquire()
        self._queue = queue
        self._began = clock.monotonic()

    def _release(self) -> None:
        if self._queue is not None:
            self._queue.release()
            self._queue = None


async def in_slices(items: Iterable[_Item], make: Callable[[_Item], _Made]) -> list[_Made]:
    """Return ``make(item)`` for every item; ``items`` must not change meanwhile."""
    made = []
    with Turns() as turns:
        for item in items:
            made.append(make(item))
            await turns.breathe()
    return made
