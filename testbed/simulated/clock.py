"""A clock that moves only when nothing else can happen."""

from __future__ import annotations

from typing import Protocol

DATE_S = 1_767_225_600.0
"""1 January 2026: when a simulation begins, in seconds since 1970."""
STEADY_S = 1_000.0
"""The steady clock at that moment; not 0, which programs read as "never"."""
READING_S = 1e-5
"""How long a reading of the clock takes in pool work, so that a search by the clock ends."""


class PoolWork(Protocol):
    """The clock's view of the pool work of a simulation."""

    def read(self) -> None:
        """Charge the time of a reading to the call that reads the clock, if any."""

    def sleep(self, seconds: float) -> bool:
        """Suspend the call that is running; False when none is."""


class VirtualClock:
    """Date and steady time of one simulation; an implementation of ``base.clock.Clock``."""

    def __init__(self) -> None:
        self._passed_s = 0.0
        self._stepped_s = 0.0
        self.work: PoolWork | None = None
        """Set by the loop of the simulation."""

    @property
    def now(self) -> float:
        """Steady seconds, read without taking time."""
        return STEADY_S + self._passed_s

    def time(self) -> float:
        """Return the date in seconds since 1970."""
        if self.work is not None:
            self.work.read()
        return DATE_S + self._stepped_s + self._passed_s

    def monotonic(self) -> float:
        """Return steady seconds."""
        if self.work is not None:
            self.work.read()
        return self.now

    def sleep(self, seconds: float) -> None:
        """Suspend the calling pool work; outside of it, advance the time at once."""
        if self.work is None or not self.work.sleep(seconds):
            self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advance the clock by ``seconds``."""
        self._passed_s += seconds

    def step(self, seconds: float) -> None:
        """Move the date, as an operator or NTP does; steady time does not notice."""
        self._stepped_s += seconds
