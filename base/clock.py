"""The one clock of a process: the date, steady time, and waits of a thread.

Daemons and drivers read time here, so that a simulation can replace the machine's clock
(``replaced``). An event loop has to wait by the same clock: asyncio's own loop waits by the
machine's steady time, so a simulation brings a loop of its own.
"""

from __future__ import annotations

import time as _machine
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Clock(Protocol):
    """What a clock offers; the standard module ``time`` is one."""

    def time(self) -> float:
        """Return the date in seconds since 1970."""

    def monotonic(self) -> float:
        """Return steady seconds since some moment."""

    def sleep(self, seconds: float, /) -> None:
        """Block the calling thread."""


_clock: Clock = _machine


def time() -> float:
    """Return the date in seconds since 1970; it may step."""
    return _clock.time()


def monotonic() -> float:
    """Return steady seconds since some moment."""
    return _clock.monotonic()


def sleep(seconds: float) -> None:
    """Block the calling thread for ``seconds``; a coroutine waits with ``asyncio.sleep``."""
    _clock.sleep(seconds)


def current() -> Clock:
    """Return the clock of this process."""
    return _clock


@contextmanager
def replaced(clock: Clock) -> Iterator[None]:
    """Make ``clock`` the clock of this process for a while."""
    global _clock  # noqa: PLW0603  # one clock a process is what this module is
    before, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = before


class SteadyClock:
    """Seconds since 1970 as of its making, plus what has passed since.

    A step of the wall clock moves neither later readings nor their differences.
    """

    __slots__ = ("_began", "_monotonic", "_start")

    def __init__(
        self,
        clock: Callable[[], float] = time,
        steady: Callable[[], float] = monotonic,
    ) -> None:
        self._monotonic = steady
        self._began = steady()
        self._start = clock()

    def __call__(self) -> float:
        """Return the time in seconds since 1970."""
        return self._start + self._monotonic() - self._began
