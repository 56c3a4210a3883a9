"""Long work on the loop in short turns: devices and other requests come in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

SLICE_S = 0.005
"""The loop is held this long at most, and for what one item takes."""

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class Turns:
    """Counts how long the loop was held."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    async def breathe(self) -> None:
        """Let others run when it has been long enough."""
        if time.monotonic() - self._began >= SLICE_S:
            await asyncio.sleep(0)
            self._began = time.monotonic()


async def in_slices(items: Iterable[_Item], make: Callable[[_Item], _Made]) -> list[_Made]:
    """Return what ``make`` makes of every item; ``items`` must not change meanwhile."""
    turns, made = Turns(), []
    for item in items:
        made.append(make(item))
        await turns.breathe()
    return made
