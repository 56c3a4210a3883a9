"""Measures how much time a search has left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class SearchClock(Protocol):
    """The remaining time of a search."""

    def left(self) -> float:
        """Return the remaining seconds."""

    def add(self, solver_seconds: float) -> None:
        """Add the solver's run time."""


@dataclass(slots=True, frozen=True)
class Slice:
    """A part of a clock's time."""

    whole: SearchClock
    rest: float
    """Seconds of the whole that are left at its end."""

    def left(self) -> float:
        """Return the remaining seconds of the part, negative after its end."""
        return self.whole.left() - self.rest

    def add(self, solver_seconds: float) -> None:
        """Add the solver's run time."""
        self.whole.add(solver_seconds)
