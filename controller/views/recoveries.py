"""Recoveries as REST documents: what happened, its phases and what it cost."""

from __future__ import annotations

from statistics import median

from checkpoints.interval import Loss, lost_by_cause
from controller.schema.checkpoints import (
    RecoveriesView,
    RecoverySumsView,
    RecoveryView,
    SiteRecoveriesView,
)
from controller.state.kept.failures import failures, gpu_hours_lost
from controller.state.kept.phases import figures
from controller.state.kept.recoveries import RecoveryRecord
from controller.state.records import JobRecord
from controller.state.state import State
from controller.usage.window import UsageQuery, answer


class RecoveryViews:
    """Makes the documents."""

    def __init__(self, state: State) -> None:
        self._state = state

    def of_job(self, name: str) -> RecoveriesView:
        """Return a job's recoveries, the oldest first. ServiceError ``not_found``."""
        job = self._state.jobs.require(name)
        records = self._state.recoveries.of(job.name, job.submitted_at)
        losses = [_loss(record) for record in records if record.finished_at is not None]
        return RecoveriesView(
            job=name,
            ettr=self._ettr(job, records),
            gpu_hours_lost=dict(lost_by_cause(losses)),
            recoveries=[view_of(record) for record in records],
        )

    def restart_s(self, job: JobRecord) -> float | None:
        """Return the median seconds from a failure of a job to its next step; None before one."""
        records = self._state.recoveries.of(job.name, job.submitted_at)
        totals = [figures(record).get("total_s") for record in records]
        known = [total for total in totals if total is not None]
        return median(known) if known else None

    async def of_site(self, since: float = 0.0) -> SiteRecoveriesView:
        """Return what failures cost the site since then (seconds since 1970).

        At the earliest since counting began: then those that are forgotten one by one count too.
        """
        state = self._state
        since, now = max(since, state.recoveries.since), state.usage.now
        lost = gpu_hours_lost(state.recoveries, since)
        held = 0.0
        if now > since:
            live = state.usage.ledger.live()
            window = UsageQuery(since, now, "project", None)
            found = answer(window, await state.store.usage(window, live), live)
            held = found.total.held_s / 3600
        return SiteRecoveriesView(
            since=since,
            ettr=max(0.0, 1 - sum(lost.values()) / held) if held else None,
            gpu_hours=held,
            gpu_hours_lost=dict(lost),
            failures=dict(failures(state.recoveries, since)),
        )

    def sums(self) -> RecoverySumsView:
        """Return what metrics show: cheap, however many recoveries there were."""
        recoveries, now = self._state.recoveries, self._state.clock()
        return RecoverySumsView(
            seconds={phase: (many, s) for phase, (many, s) in recoveries.phases.items()},
            gpu_hours_lost=dict(gpu_hours_lost(recoveries, 0.0)),
            open_s={r.job: max(0.0, now - r.failed_at) for r in recoveries.open()},
        )

    def _ettr(self, job: JobRecord, records: tuple[RecoveryRecord, ...]) -> float | None:
        """Return the share of the job's time that was not lost; None before it has run.

        What its checkpoints take is not counted here.
        """
        began = min(
            [r.failed_at for r in records] + ([job.started_at] if job.started_at else []),
            default=None,
        )
        end = job.finished_at or self._state.clock()
        if began is None or job.started_at is None or end <= began:
            return None
        lost_s = sum((r.finished_at or end) - r.failed_at + r.repeated_s for r in records)
        return min(1.0, max(0.0, 1 - lost_s / (end - began)))


def _loss(record: RecoveryRecord) -> Loss:
    lasted_s = max(0.0, (record.finished_at or record.failed_at) - record.failed_at)
    return Loss(record.cause, record.gpus, lasted_s, record.repeated_s)


def view_of(record: RecoveryRecord) -> RecoveryView:
    """Return one recovery as a document."""
    written, restored = record.step_written, record.step_restored
    lost = None if written is None or restored is None else max(0, written - restored)
    return RecoveryView(
        number=record.number,
        cause=record.cause,
        objects=list(record.objects),
        how=record.how,
        why=record.why,
        swaps=dict(record.swaps),
        failed_at=record.failed_at,
        finished_at=record.finished_at,
        step_written=written,
        step_restored=restored,
        steps_lost=lost,
        gpu_hours_lost=record.gpu_hours if record.finished_at is not None else None,
        **figures(record),
    )
