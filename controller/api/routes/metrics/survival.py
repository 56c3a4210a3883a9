"""Metrics of checkpoints and of recoveries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from controller.schema.checkpoints import CheckpointSumsView, RecoverySumsView
from controller.schema.jobs import JobView

PHASES = (
    *("detect", "decide", "stop", "light", "fetch"),
    *("start", "import", "first_step", "total", "own"),
)


def of_checkpoints(jobs: Mapping[str, CheckpointSumsView]) -> Iterator[Metric]:
    """Yield what the jobs keep that have not ended."""
    size = GaugeMetricFamily(
        "lightloom_checkpoint_bytes",
        "Bytes of a job's checkpoints by how safe they are, without copies",
        labels=("job", "state"),
    )
    written = GaugeMetricFamily(
        "lightloom_checkpoint_written_seconds",
        "Median over ranks of what the newest written step took",
        labels=("job",),
    )
    bare = GaugeMetricFamily(
        "lightloom_checkpoint_unprotected_seconds",
        "For how long the newest written step has had no copy; 0 when it has one",
        labels=("job",),
    )
    for job, sums in jobs.items():
        for state, count in sums.bytes.items():
            size.add_metric((job, state.value), count)
        if sums.written_s is not None:
            written.add_metric((job,), sums.written_s)
        if sums.unprotected_s is not None:
            bare.add_metric((job,), sums.unprotected_s)
    yield from (size, written, bare)


def of_recoveries(sums: RecoverySumsView) -> Iterator[Metric]:
    """Yield what recoveries took and what failures cost."""
    phases = SummaryMetricFamily(
        "lightloom_recovery_seconds",
        "Phases of the recoveries that ended since the controller started",
        labels=("phase",),
    )
    for phase in PHASES:
        many, seconds = sums.seconds.get(f"{phase}_s", (0, 0.0))
        phases.add_metric((phase,), count_value=many, sum_value=seconds)
    lost = CounterMetricFamily(
        "lightloom_lost_gpu_seconds", "GPU-seconds that failures cost", labels=("cause",)
    )
    for cause, hours in sums.gpu_hours_lost.items():
        lost.add_metric((cause,), hours * 3600)
    under_way = GaugeMetricFamily(
        "lightloom_recovery_open_seconds",
        "For how long a job has been without progress since a failure",
        labels=("job",),
    )
    for job, seconds in sums.open_s.items():
        under_way.add_metric((job,), seconds)
    yield from (phases, lost, under_way)


def of_spares(jobs: Sequence[JobView]) -> Iterator[Metric]:
    """Yield how many spares running jobs lack."""
    missing = GaugeMetricFamily(
        "lightloom_job_spares_missing",
        "Spares that a running job asks for and does not have",
        labels=("job",),
    )
    for job in jobs:
        if job.spares_asked and job.finished_at is None and job.started_at is not None:
            missing.add_metric((job.name,), max(0, job.spares_asked - len(job.spares)))
    yield missing
