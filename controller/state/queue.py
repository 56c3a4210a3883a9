"""The result of a scheduling round of the queue. Values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.queue.model import (
    QueueHold,
)


@dataclass(slots=True, frozen=True)
class Hint:
    """A regroup that would let a job start; counts of endpoints."""

    moves: int
    running_moves: int
    jobs: tuple[str, ...]
    gpus: int


@dataclass(slots=True, frozen=True)
class QueueReport:
    """What one scheduling round found about the waiting jobs."""

    holds: Mapping[str, QueueHold] = field(default_factory=dict)
    """Why each job waits, in the order of the queue."""
    positions: Mapping[str, int] = field(default_factory=dict)
    """Place in the queue, from 1."""
    hints: Mapping[str, Hint] = field(default_factory=dict)
