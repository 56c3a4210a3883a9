"""What jobs that have ended communicated. Part of the state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.state.kinds.kind import Kind, Records
from controller.state.kinds.shares import Limit, one
from scheduler.steptime.facts import StepFacts

KEPT_COMMS = 200
"""Ended jobs whose figures stay; the projects share them."""
KEPT_COMMS_BYTES = 16 * 2**20
"""Of their documents together."""


@dataclass(slots=True, frozen=True, kw_only=True)
class CommsRecord:
    """The last figures of one job."""

    job: str
    submitted_at: float
    """Of the job: another one may get its name later."""
    kept_at: float
    ranks: int
    """Ranks with figures."""
    calls: int
    """Of all of them."""
    body: str
    """The document as JSON."""
    facts: StepFacts | None = None

    @property
    def weight(self) -> tuple[int, int]:
        """The figures of more ranks are greater, then those of more calls."""
        return self.ranks, self.calls


COMMS = Kind(
    "comms",
    CommsRecord,
    key="job",
    order="kept_at",
    columns=("submitted_at", "kept_at", "ranks", "calls", "facts", "body"),
    document=False,
)


class KeptComms(Records[CommsRecord]):
    """Records by job."""

    def put(self, record: CommsRecord) -> CommsRecord:
        """Add or replace a record; it is the newest."""
        self.remove(record.job)
        return super().put(record)

    def trim(self, project_of: Callable[[str], str]) -> tuple[str, ...]:
        """Forget what is beyond the limits; return the jobs.

        The oldest goes of the project that has most, so that no project displaces another one's.
        """
        limits: tuple[Limit[CommsRecord], ...] = (
            (KEPT_COMMS, one),
            (KEPT_COMMS_BYTES, lambda record: len(record.body)),
        )
        gone = self.share_out(lambda record: project_of(record.job), *limits)
        return tuple(record.job for record in gone)
