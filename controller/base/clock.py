"""A clock whose differences are right: dates from the wall clock, what passes from a steady one."""

from __future__ import annotations

import time
from collections.abc import Callable


class SteadyClock:
    """Seconds since 1970 as of its making, plus what has passed since.

    A step of the wall clock moves neither later readings nor their differences.
    """

    __slots__ = ("_began", "_monotonic", "_start")

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._began = monotonic()
        self._start = clock()

    def __call__(self) -> float:
        """Return the time in seconds since 1970."""
        return self._start + self._monotonic() - self._began
