"""Measurements as REST documents."""

from __future__ import annotations

from controller.schema.insight.measurements import MeasurementView, ProgressView, RunView
from controller.state.kept.measurements import MeasurementRecord
from measure.kinds import Progress


def job_name(ident: str, run: int) -> str:
    """Return the name of a run's job: ``measure-m7``, ``measure-m7-2``, ..."""
    return f"measure-{ident}" if run == 0 else f"measure-{ident}-{run + 1}"


def measurement_view(
    record: MeasurementRecord, progress: Progress | None, begun: frozenset[str] = frozenset()
) -> MeasurementView:
    """Return a measurement without its result; ``begun`` are the jobs that exist."""
    runs = []
    for number, run in enumerate(record.runs):
        name = job_name(record.id, number)
        ended = run.end is not None
        runs.append(
            RunView(
                job=(run.end.job if run.end else "") if ended else name if name in begun else "",
                label=run.label,
                endpoints=list(run.endpoints),
                homes=dict(run.end.homes) if run.end and run.end.homes else dict(run.homes),
            )
        )
    return MeasurementView(
        id=record.id,
        type=record.type,
        state=record.state,
        reason=record.reason,
        user=record.user,
        project=record.project,
        submitted_at=record.submitted_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        endpoints=list(record.endpoints),
        progress=progress
        and ProgressView(done=progress.done, total=progress.total, text=progress.text),
        runs=runs,
        valid=record.valid,
        invalid_because=list(record.invalid_because),
    )
