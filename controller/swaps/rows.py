"""The rows of recoveries: opened when a job loses a rank, marked as it goes on, closed at its first
step. One monotonic clock measures each of them."""

from __future__ import annotations

from collections.abc import Callable

from base import clock
from controller.state.kept.phases import figures
from controller.state.kept.recoveries import RECOVERIES, RecoveryRecord, RecoveryWay, Total
from controller.state.kinds.kind import Key
from controller.state.records import JobRecord
from controller.state.state import State
from controller.swaps.contract import JobCheckpoints, JobLoss, reached
from controller.swaps.progress import StepProgress

LONGEST_DETECT_S = 600.0
"""A server's clock may differ from ours: a failure is not believed to be older than this."""


class Rows:
    """Keeps the rows; what they say is durable with the caller's commit."""

    def __init__(
        self,
        state: State,
        checkpoints: JobCheckpoints,
        progress: StepProgress,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._state = state
        self._checkpoints = checkpoints
        self._progress = progress
        self._monotonic = monotonic
        self._failed: dict[str, float] = {}
        """By row under way: the moment of the failure by the monotonic clock."""

    def begin(self, job: JobRecord, loss: JobLoss, how: RecoveryWay = "swap") -> RecoveryRecord:
        """Open a row. One of the job that is still open ends here."""
        state = self._state
        detect_s = min(max(0.0, state.clock() - loss.failed_at), LONGEST_DETECT_S)
        before = state.recoveries.under_way(job.name, job.submitted_at)
        if before is not None:
            self.end(before.id)
            state.journal.owe(RECOVERIES.row(before.id))
        mine = state.recoveries.of(job.name, job.submitted_at)
        newest = self._checkpoints.newest(job.name)
        last = reached(self._checkpoints, job.name)
        written_at = self._progress.written_at(job, newest)
        failed_at = state.clock() - detect_s
        record = state.recoveries.put(
            RecoveryRecord(
                id=state.recoveries.next_key(),
                job=job.name,
                submitted_at=job.submitted_at,
                number=mine[-1].number + 1 if mine else 1,
                epoch=job.epoch,
                cause=loss.cause,
                objects=loss.objects,
                dead=tuple(loss.dead),
                how=how,
                gpus=len(job.endpoints),
                failed_at=failed_at,
                step_written=last,
                step_restored=newest.step if newest else None if last is None else 0,
                repeated_s=max(0.0, failed_at - written_at) if written_at is not None else 0.0,
                marks={"detected": detect_s},
            )
        )
        self._failed[record.id] = self._monotonic() - detect_s
        return record

    def mark(self, ident: str, name: str) -> None:
        """Note that a moment has come; a later one of the same name replaces it."""
        record = self._state.recoveries.get(ident)
        if record is None or ident not in self._failed:
            return
        marks = {**record.marks, name: self._monotonic() - self._failed[ident]}
        self._state.recoveries.change(ident, marks=marks)

    def since(self, ident: str, name: str) -> float | None:
        """Return the seconds since a moment of a row under way; None where it is not known."""
        at = self._state.recoveries[ident].marks.get(name)
        if at is None or ident not in self._failed:
            return None
        return self._monotonic() - self._failed[ident] - at

    def end(self, ident: str, *, stepped: bool = False, **fields: object) -> RecoveryRecord:
        """Close a row; ``stepped``: the job made its first step just now."""
        if stepped:
            self.mark(ident, "stepped")
        self._failed.pop(ident, None)
        recoveries = self._state.recoveries
        fields = {"stage": "over", "finished_at": self._state.clock(), **fields}
        record = recoveries.change(ident, **fields)
        recoveries.add_phases(figures(record))
        return record

    def resume(self) -> None:
        """Note that the rows under way have lost their clock with the controller before.

        One row of a job goes on, its latest: an earlier one ended with the loss that opened it.
        """
        state = self._state
        for record in list(state.recoveries.values()):
            if not record.open:
                continue
            latest = state.recoveries.under_way(record.job, record.submitted_at)
            state.recoveries.change(record.id, broken=True)
            if latest is not None and latest.id != record.id:
                self.end(record.id)
                state.journal.owe(*self.writes(record.id))

    def writes(self, ident: str) -> tuple[Key, ...]:
        """Return the keys of one row, and of the oldest ones that make room for it."""
        state = self._state
        gone = state.recoveries.surplus(state.project_of)
        for record in gone:
            total = state.recoveries.forgotten.get(record.cause, Total())
            state.recoveries.forgotten[record.cause] = Total(
                total.failures + 1, total.gpu_hours + record.gpu_hours
            )
            state.recoveries.remove(record.id)
        return tuple(RECOVERIES.row(one) for one in (ident, *(r.id for r in gone)))
