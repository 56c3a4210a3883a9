"""The frozen values of the controller's own state: what the store keeps and the service changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.schema.base import JobState, Severity
from controller.schema.jobs import JobRequest

ENDED: frozenset[JobState] = frozenset({"completed", "failed", "cancelled"})
"""States a job never leaves."""

HOLDING: frozenset[JobState] = frozenset({"starting", "running", "pausing", "paused"})
"""States in which a job owns its endpoints."""


@dataclass(slots=True, frozen=True)
class JobRecord:
    """One job; ``endpoints`` in rank order, empty while it is pending."""

    name: str
    request: JobRequest
    image: str
    submitted_at: float
    state: JobState = "pending"
    reason: str = ""
    endpoints: tuple[str, ...] = ()
    epoch: int = 0
    """Epoch of its containers' names."""
    restarts: int = 0
    failures: int = 0
    """Deaths of ranks that its restart policy had to deal with."""
    started_at: float | None = None
    finished_at: float | None = None
    exit_codes: tuple[int | None, ...] = ()
    dark_time_s: Mapping[str, float] = field(default_factory=dict)
    """Per endpoint, over all regroups."""
    final_homes: tuple[str | None, ...] = ()
    """Where the endpoints were when the job ended, in rank order; empty before."""
    reserved_at: float | None = None
    """Since when it has been the first that waits in the queue; None when it never was."""
    pauses: Mapping[str, float] = field(default_factory=dict)
    """When its light was moved, by transaction; the latest ones."""

    @property
    def holding(self) -> bool:
        """True while the job owns its endpoints."""
        return self.state in HOLDING

    @property
    def ended(self) -> bool:
        """True when the job never runs again."""
        return self.state in ENDED


@dataclass(slots=True, frozen=True)
class Event:
    """Something worth telling people; ``id`` grows by one and is never used twice."""

    id: int
    time: float
    severity: Severity
    object: str
    reason: str
    message: str
    epoch: int


@dataclass(slots=True, frozen=True)
class Quarantine:
    """A port (``as0/3``) or an endpoint (``gpu2``) that must not be used, and why."""

    object: str
    reason: str
    since: float
