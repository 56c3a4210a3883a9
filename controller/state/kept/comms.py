"""What jobs that have ended communicated. Part of the state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from scheduler.steptime.facts import StepFacts

KEPT_COMMS = 200
"""Ended jobs whose figures stay."""
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
    """Ranks that told something."""
    calls: int
    """Of all of them."""
    body: str
    """The document as JSON."""
    facts: StepFacts | None = None

    @property
    def weight(self) -> tuple[int, int]:
        """What tells more of a job is greater."""
        return self.ranks, self.calls


class KeptComms(Mapping[str, CommsRecord]):
    """Records by job, the oldest first. Records are frozen: ``put`` replaces them."""

    def __init__(self) -> None:
        self._records: dict[str, CommsRecord] = {}

    def __getitem__(self, job: str) -> CommsRecord:
        return self._records[job]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def restore(self, records: Iterable[CommsRecord]) -> None:
        """Take over the stored records."""
        self._records = {one.job: one for one in sorted(records, key=lambda one: one.kept_at)}

    def put(self, record: CommsRecord) -> tuple[str, ...]:
        """Add or replace a record; return the jobs of the oldest, forgotten for it."""
        self._records.pop(record.job, None)
        self._records[record.job] = record
        gone, size = [], 0
        for number, one in enumerate(reversed(list(self._records.values()))):
            size += len(one.body)
            if number >= KEPT_COMMS or size > KEPT_COMMS_BYTES:
                gone.append(one.job)
        for job in gone:
            self.remove(job)
        return tuple(gone)

    def remove(self, job: str) -> None:
        """Forget a record."""
        self._records.pop(job, None)
