"""What jobs that have ended communicated. Part of the state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

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

    def put(self, record: CommsRecord) -> None:
        """Add or replace a record."""
        self._records.pop(record.job, None)
        self._records[record.job] = record

    def trim(self, project_of: Callable[[str], str]) -> tuple[str, ...]:
        """Forget what is beyond the limits; return the jobs.

        The oldest goes of the project that has most, so that no project displaces another one's.
        """
        kept: dict[str, deque[CommsRecord]] = {}
        for one in self._records.values():
            kept.setdefault(project_of(one.job), deque()).append(one)
        sizes = {project: sum(len(one.body) for one in ones) for project, ones in kept.items()}
        left, total, gone = len(self._records), sum(sizes.values()), []
        while left > KEPT_COMMS or total > KEPT_COMMS_BYTES:
            by_number = left > KEPT_COMMS
            most = max(kept, key=lambda p: len(kept[p]) if by_number else sizes[p])
            oldest = kept[most].popleft()
            size = len(oldest.body)
            left, total, sizes[most] = left - 1, total - size, sizes[most] - size
            self.remove(oldest.job)
            gone.append(oldest.job)
        return tuple(gone)

    def remove(self, job: str) -> None:
        """Forget a record."""
        self._records.pop(job, None)
