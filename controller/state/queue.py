"""What the last look at the queue found. Values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.queue.model import (
    Hold,
)


@dataclass(slots=True, frozen=True)
class Hint:
    """A regroup that would let a job in; counts of endpoints."""

    moves: int
    running_moves: int
    jobs: tuple[str, ...]
    gpus: int


@dataclass(slots=True, frozen=True)
class QueueReport:
    """What one look at the queue found of those who wait."""

    holds: Mapping[str, Hold] = field(default_factory=dict)
    """In the order of the queue."""
    positions: Mapping[str, int] = field(default_factory=dict)
    """In the queue, from 1."""
    hints: Mapping[str, Hint] = field(default_factory=dict)
