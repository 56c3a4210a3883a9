"""Long work on the loop in short turns: devices and other requests come in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self, TypeVar
from weakref import WeakKeyDictionary

SLICE_S = 0.005
"""The loop is held this long at most, and for what one item takes."""

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")
_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class Turns:
    """Counts how long the loop was held by one piece of work; use it as a context, never nested.

    Whatever takes more than one slice stands in one queue: a hundred large answers at once hold
    the loop no longer between two other requests than one does.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
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
        self._let_go()

    async def breathe(self) -> None:
        """Let others run when it has been long enough."""
        if time.monotonic() - self._began < SLICE_S:
            return
        await asyncio.sleep(0)  # before it lets go: the next one begins a turn of the loop later
        self._let_go()
        queue = _queues.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        await queue.acquire()
        self._queue = queue
        self._began = time.monotonic()

    def _let_go(self) -> None:
        if self._queue is not None:
            self._queue.release()
            self._queue = None


async def in_slices(items: Iterable[_Item], make: Callable[[_Item], _Made]) -> list[_Made]:
    """Return what ``make`` makes of every item; ``items`` must not change meanwhile."""
    made = []
    with Turns() as turns:
        for item in items:
            made.append(make(item))
            await turns.breathe()
    return made
