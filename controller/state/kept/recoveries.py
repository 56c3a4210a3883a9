"""What happened to jobs that lost a rank, under way and over. Part of the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from checkpoints.interval import Loss
from controller.state.kinds.kind import Kind, Records
from controller.state.kinds.shares import one, surplus

RecoveryCause = Literal["endpoint", "server", "aggregator", "switch", "program", "drain"]
RecoveryWay = Literal["swap", "again", "queue", "shrink", "ended"]
Stage = Literal["decided", "started", "over"]
"""It is decided and nothing runs; the ranks of the new run may run; the first step was made or
none will be."""

KEPT_OF_JOB = 100
KEPT_RECOVERIES = 5000


@dataclass(slots=True, frozen=True, kw_only=True)
class RecoveryRecord:
    """One recovery of one job. ``dead`` are its lost endpoints, ``swaps`` their spares."""

    id: str
    job: str
    submitted_at: float
    """Of the job: another one may get its name later."""
    number: int
    """Counts the job's recoveries from 1."""
    epoch: int
    """The run that was lost."""
    cause: RecoveryCause
    objects: tuple[str, ...]
    dead: tuple[str, ...] = ()
    how: RecoveryWay = "swap"
    stage: Stage = "decided"
    why: str = ""
    swaps: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    failed_at: float
    """Seconds since 1970, as is ``finished_at``."""
    finished_at: float | None = None
    step_written: int | None = None
    """The newest step that a rank had written, whole or not; what was made later is not known."""
    step_restored: int | None = None
    repeated_s: float = 0.0
    """Time of the steps that are done a second time."""
    marks: Mapping[str, float] = field(default_factory=dict)
    """Seconds of one monotonic clock from the failure to each moment of
    ``checkpoints.recovery.Marks``, as far as known."""
    broken: bool = False
    """The controller restarted meanwhile: the clock of ``marks`` is gone."""

    @property
    def open(self) -> bool:
        """Whether it is under way."""
        return self.stage != "over"

    @property
    def gpu_hours(self) -> float:
        """GPU-hours without progress, as far as known; 0 while it is under way."""
        if self.finished_at is None:
            return 0.0
        lasted_s = max(0.0, self.finished_at - self.failed_at)
        loss = Loss(self.cause, self.gpus, lasted_s, self.repeated_s)
        return loss.gpu_hours


@dataclass(slots=True, frozen=True)
class Total:
    """Recoveries of one cause that are no longer kept one by one."""

    failures: int = 0
    gpu_hours: float = 0.0


RECOVERIES = Kind(
    "recoveries",
    RecoveryRecord,
    key="id",
    order="failed_at",
    columns=("job", "failed_at"),
    prefix="r",
)


class Recoveries(Records[RecoveryRecord]):
    """Recoveries by id."""

    def __init__(self) -> None:
        super().__init__(RECOVERIES)
        self.forgotten: dict[str, Total] = {}
        """By cause."""
        self.phases: dict[str, tuple[int, float]] = {}
        """Count and sum of seconds of each phase, of all that ended since the controller
        started."""
        self._open: dict[tuple[str, float], set[str]] = {}
        """Ids of those under way, by job."""
        self.since = 0.0
        """Since when failures are counted, in seconds since 1970."""

    def restore_totals(self, forgotten: Mapping[str, tuple[int, float]], since: float) -> None:
        """Take over what is stored: failures and GPU-hours by cause, and since when."""
        self.forgotten = {cause: Total(*total) for cause, total in forgotten.items()}
        self.since = since

    def put(self, record: RecoveryRecord) -> RecoveryRecord:
        """Insert or replace a record."""
        super().put(record)
        key = record.job, record.submitted_at
        if record.open:
            self._open.setdefault(key, set()).add(record.id)
        else:
            self._shut(key, record.id)
        return record

    def remove(self, key: str) -> RecoveryRecord | None:
        """Forget a record."""
        record = super().remove(key)
        if record is not None:
            self._shut((record.job, record.submitted_at), key)
        return record

    def _shut(self, key: tuple[str, float], ident: str) -> None:
        if ident in (mine := self._open.get(key, set())):
            mine.discard(ident)
            if not mine:
                del self._open[key]

    def add_phases(self, seconds: Mapping[str, float | None]) -> None:
        """Count the phases of a recovery that ended; None is not known."""
        for phase, known in seconds.items():
            if known is not None:
                many, total = self.phases.get(phase, (0, 0.0))
                self.phases[phase] = many + 1, total + known

    def open(self) -> tuple[RecoveryRecord, ...]:
        """Return the latest recovery under way of each job that has one."""
        return tuple(self[max(mine, key=self.kind.number)] for mine in self._open.values())

    def of(self, job: str, submitted_at: float) -> tuple[RecoveryRecord, ...]:
        """Return a job's recoveries, oldest first."""
        return tuple(r for r in self.values() if r.job == job and r.submitted_at == submitted_at)

    def under_way(self, job: str, submitted_at: float) -> RecoveryRecord | None:
        """Return a job's latest recovery that is not over."""
        mine = self._open.get((job, submitted_at))
        return self[max(mine, key=self.kind.number)] if mine else None

    def surplus(self, project_of: Callable[[str], str]) -> tuple[RecoveryRecord, ...]:
        """Return what is over and beyond the limits; changes nothing.

        Those are the oldest of a job, and the oldest of the project with most.
        """
        over = [record for record in self.values() if not record.open]
        of_job: dict[tuple[str, float], int] = {}
        left = []
        for record in reversed(self._records.values()):
            key = record.job, record.submitted_at
            of_job[key] = of_job.get(key, 0) + 1
            if not record.open and of_job[key] <= KEPT_OF_JOB:
                left.append(record)
        most = KEPT_RECOVERIES - (len(self) - len(over))
        gone = surplus(reversed(left), lambda record: project_of(record.job), (most, one))
        kept = {record.id for record in left} - {record.id for record in gone}
        return tuple(record for record in over if record.id not in kept)
