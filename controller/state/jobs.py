"""The jobs of the site, and what is known of their ranks. Part of the state."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field, replace

from controller.base.errors import not_found
from controller.devices.engine import RankStatus
from controller.state.kinds.shares import Limit, one, surplus
from controller.state.queue import QueueReport
from controller.state.records import JobRecord, JobSpec

KEPT_JOBS = 2000
"""Ended jobs that can still be read; a controller runs for years. Beyond it those of the project
that has most go first."""
KEPT_JOB_BYTES = 16 * 2**20
"""Of the texts of all ended jobs together, as memory holds them."""


@dataclass(slots=True, frozen=True)
class Handled:
    """What is being done with a job, and when that is over; its light is not moved meanwhile."""

    doing: str
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Jobs(Mapping[str, JobRecord]):
    """Every job by name, in the order of submission.

    Records are frozen: the methods replace them.
    """

    def __init__(
        self, changed: Callable[[JobRecord | None, JobRecord], None] = lambda *_: None
    ) -> None:
        """``changed`` is called with every replaced record, None without one, and the new."""
        self._changed = changed
        self._records: dict[str, JobRecord] = {}
        self._waiting: Counter[str] = Counter()
        """Pending jobs by project."""
        self._waiting_bytes: Counter[str] = Counter()
        """Of the texts of pending jobs, by project."""
        self._sizes: dict[str, tuple[JobSpec | None, int]] = {}
        """Per job: its request and the bytes of its texts."""
        self.departed = 0
        """How many records of ended jobs were forgotten or replaced."""
        self.handled: dict[str, Handled] = {}
        """Jobs on which an operator's order is being carried out."""
        self.owed: set[str] = set()
        """Jobs that an interrupted transaction may have left frozen or stopped, until they run."""
        self.halted: set[str] = set()
        """Stopped jobs whose recovery goes on once interrupted transactions have ended."""
        self.unwanted: set[str] = set()
        """Jobs that are being cancelled: what is under way with them stops soon."""
        self.stalled: dict[str, tuple[float, str]] = {}
        """Jobs that have stopped communicating: since when that is known, and what was seen."""
        self.statuses: list[RankStatus] = []
        """The agents' last report of every rank; replaced as a whole."""
        self.queue = QueueReport()
        """The result of the last scheduling round."""
        self.promised: dict[str, frozenset[str]] = {}
        """Endpoints that a regroup under way frees, by the pending job they are for."""
        self.wake = asyncio.Event()
        """Set on every change that may let a waiting job run."""

    def __getitem__(self, name: str) -> JobRecord:
        return self._records[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def require(self, name: str) -> JobRecord:
        """Return one job. ServiceError ``not_found``."""
        try:
            return self._records[name]
        except KeyError:
            raise not_found("job", name) from None

    def values(self) -> ValuesView[JobRecord]:
        """Return the records; a view of the dictionary, which is faster than the mixin's."""
        return self._records.values()

    def items(self) -> ItemsView[str, JobRecord]:
        """Return names and records."""
        return self._records.items()

    def restore(self, jobs: Iterable[JobRecord]) -> None:
        """Take over the stored jobs."""
        self._records = {job.name: job for job in jobs}
        for job in self._records.values():
            self._count(job, 1)

    def waiting(self, project: str) -> int:
        """Return how many jobs of a project are pending."""
        return self._waiting[project]

    def waiting_bytes(self, project: str) -> int:
        """Return what the texts of a project's pending jobs take in memory."""
        return self._waiting_bytes[project]

    def put(self, job: JobRecord) -> JobRecord:
        """Replace a job's record and wake the tasks that wait for a change."""
        self._replace(job)
        self.wake.set()
        return job

    def change(self, name: str, **fields: object) -> JobRecord:
        """Replace some fields of a job's record and wake the tasks that wait for a change."""
        return self.put(self._replaced(name, **fields))

    def put_back(self, job: JobRecord) -> None:
        """Restore an earlier record after a refused write; wakes no task."""
        self._replace(job)

    def annotate(self, name: str, **fields: object) -> JobRecord:
        """Replace fields that a scheduling round itself decided; wakes no task."""
        self._replace(self._replaced(name, **fields))
        return self._records[name]

    def remove(self, name: str) -> JobRecord | None:
        """Forget a job; return its last record, None for an unknown job."""
        gone = self._records.pop(name, None)
        self._count(gone, -1)
        self._sizes.pop(name, None)
        self.departed += gone is not None and gone.ended
        return gone

    def forget_ended(self) -> tuple[str, ...]:
        """Forget ended jobs beyond the limits; return their names.

        Those are the oldest of the project that has most: no project displaces another one's.
        """
        ended = [job for job in self._records.values() if job.ended]
        ended.sort(key=lambda job: job.finished_at or job.submitted_at)
        limits: tuple[Limit[JobRecord], ...] = (KEPT_JOBS, one), (KEPT_JOB_BYTES, self._texts)
        gone = surplus(ended, lambda job: job.request.project, *limits)
        for job in gone:
            self.remove(job.name)
        return tuple(job.name for job in gone)

    def promised_endpoints(self) -> frozenset[str]:
        """Return the endpoints reserved for jobs that a regroup under way makes room for."""
        return frozenset(e for endpoints in self.promised.values() for e in endpoints)

    def holders(self) -> dict[str, JobRecord]:
        """Return the job of every endpoint that has one."""
        return {e: job for job in self._records.values() if job.holding for e in job.endpoints}

    def spares(self) -> dict[str, str]:
        """Return the name of the job of every endpoint that is reserved as a spare."""
        return {e: job.name for job in self._records.values() if job.holding for e in job.spares}

    def _replace(self, job: JobRecord) -> None:
        before = self._records.get(job.name)
        self._records[job.name] = job
        self._count(before, -1)
        self._count(job, 1)
        self.departed += before is not None and before.ended
        self._changed(before, job)

    def _count(self, job: JobRecord | None, delta: int) -> None:
        if job is not None and job.state == "pending":
            self._waiting[job.request.project] += delta
            self._waiting_bytes[job.request.project] += delta * self._texts(job)

    def _replaced(self, name: str, **fields: object) -> JobRecord:
        return replace(self._records[name], **fields)  # type: ignore[arg-type]

    def _texts(self, job: JobRecord) -> int:
        """Return what a job's texts take in memory; counted once for each request."""
        known, size = self._sizes.get(job.name, (None, 0))
        if known is not job.request:
            size = held_bytes(job.request)
            self._sizes[job.name] = (job.request, size)
        return size


def held_bytes(request: JobSpec) -> int:
    """Return what the texts of a request take in memory.

    One wide character makes a text four times as large there as on the wire.
    """
    texts = (*request.command, *request.env, *request.env.values(), *request.endpoints)
    texts += (*request.secrets, *request.secrets.values())
    return sum(map(sys.getsizeof, (*texts, *(volume.path for volume in request.volumes))))
