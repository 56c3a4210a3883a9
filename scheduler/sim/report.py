"""Computes the metrics of a replay, as scheduling literature and the project define them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np


@dataclass(slots=True, frozen=True)
class Report:
    """One policy's figures, named as in ``lightloom simulate -o json``; times in s."""

    trace: str
    policy: str
    endpoints: int
    jobs: int
    makespan_s: float
    """Last finish minus first submission."""
    jct_mean_s: float
    """Finish minus submission."""
    jct_p50_s: float
    jct_p99_s: float
    jct_gpu_time_weighted_s: float
    """Mean weighted by GPUs times duration."""
    queue_mean_s: float
    """Start minus submission."""
    utilisation: float
    """Busy GPU-seconds over the makespan's GPU-seconds."""
    effective_utilisation: float
    """Work done over the same: slowdown and pauses are subtracted."""
    locality_time: float
    """Share of the GPU-time of multi-GPU jobs that ran with zero excess span."""
    excess_span_mean: float
    """Excess span of all running jobs, averaged over the makespan."""
    regroups: int
    """Times that running jobs were moved; evictions count as well."""
    running_moves: int
    """Endpoints of running jobs that changed home, and endpoints of restarted jobs."""
    pauses_per_job_hour: float
    """Pauses and restarts per hour of job run time."""
    replay_s: float
    jobs_per_s: float

    def document(self) -> dict[str, object]:
        """Return the figures by name, rounded to six decimal places."""
        return {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


@dataclass(slots=True)
class Totals:
    """Running totals of a replay, in GPU-seconds unless the name has another unit."""

    busy: float = 0.0
    work: float = 0.0
    multi: float = 0.0
    multi_local: float = 0.0
    job_seconds: float = 0.0
    excess_seconds: float = 0.0
    regroups: int = 0
    running_moves: int = 0
    pauses: int = 0


@dataclass(slots=True, frozen=True)
class Ended:
    """One finished job."""

    name: str
    gpus: int
    duration_s: float
    submitted: float
    started: float
    finished: float

    @property
    def jct_s(self) -> float:
        """Finish minus submission."""
        return self.finished - self.submitted


def report(
    trace: str,
    policy: str,
    endpoints: int,
    ended: Sequence[Ended],
    totals: Totals,
    *,
    replay_s: float,
) -> Report:
    """Return the metrics of one replay; there must be jobs."""
    jct = np.array([job.jct_s for job in ended])
    weight = np.array([job.gpus * job.duration_s for job in ended])
    makespan = max(job.finished for job in ended) - min(job.submitted for job in ended)
    there = endpoints * makespan
    return Report(
        trace=trace,
        policy=policy,
        endpoints=endpoints,
        jobs=len(ended),
        makespan_s=float(makespan),
        jct_mean_s=float(jct.mean()),
        jct_p50_s=float(np.percentile(jct, 50)),
        jct_p99_s=float(np.percentile(jct, 99)),
        jct_gpu_time_weighted_s=float(np.average(jct, weights=weight)),
        queue_mean_s=float(np.mean([job.started - job.submitted for job in ended])),
        utilisation=totals.busy / there,
        effective_utilisation=totals.work / there,
        locality_time=totals.multi_local / totals.multi if totals.multi > 0 else 1.0,
        excess_span_mean=totals.excess_seconds / makespan,
        regroups=totals.regroups,
        running_moves=totals.running_moves,
        pauses_per_job_hour=totals.pauses / (totals.job_seconds / 3600.0),
        replay_s=replay_s,
        jobs_per_s=len(ended) / replay_s if replay_s > 0 else 0.0,
    )
