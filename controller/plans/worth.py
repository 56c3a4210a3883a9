"""Weighs a plan: the step meter's predicted gain against the cost of its pauses. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from controller.schema.plans import GainView, WorthView
from controller.state.records import JobRecord
from controller.telemetry.steps import StepMeter
from scheduler.model import Job, Plan
from scheduler.policy.worth import Stake, remaining_s, weigh
from scheduler.queue.model import QueueHold


def stakes_of(
    meter: StepMeter,
    plan: Plan,
    jobs: Sequence[Job],
    homes: Mapping[str, str | None],
    records: Mapping[str, JobRecord],
    *,
    now: float,
    pause_s: float,
    pauses: Mapping[str, int] = MappingProxyType({}),
) -> tuple[list[Stake], dict[str, int]] | None:
    """Return each job's gain and loss, and the number of measured placements behind it.

    ``pause_s``: dark time and recovery of a job whose light is cut; ``pauses`` are the times that
    this happens, if not once. None when the site's rates are unknown.
    """
    speedups = meter.speedups(jobs, homes, plan.homes_after)
    if speedups is None:
        return None
    moved = {move.endpoint for move in plan.moves}
    stakes = []
    for job in jobs:
        cut = any(e in moved for e in job.endpoints)
        ratio, _ = speedups[job.name]
        if not cut and ratio.exact and ratio.low == 1.0:
            continue
        record = records[job.name]
        ran = 0.0 if record.started_at is None else max(now - record.started_at, 0.0)
        left = remaining_s(ran, record.request.time_limit_s)
        lost_s = pause_s * pauses.get(job.name, 1) if cut else 0.0
        stakes.append(Stake(job.name, len(job.endpoints), ratio, left, lost_s))
    return stakes, {name: placements for name, (_, placements) in speedups.items()}


def worth_view(stakes: Sequence[Stake], admitted_gpu_s: float = 0.0) -> WorthView:
    """Return the verdict on a plan with these stakes."""
    found = weigh(stakes, admitted_gpu_s)
    return WorthView(
        verdict=found.verdict.value,
        gain_low_gpu_s=found.gain_gpu_s.low,
        gain_high_gpu_s=found.gain_gpu_s.high,
        cost_gpu_s=found.cost_gpu_s,
        reason=found.reason,
    )


def with_stakes(
    gains: Sequence[GainView], stakes: Sequence[Stake], placements: Mapping[str, int]
) -> list[GainView]:
    """Add to each job's gain the effect on its steps and its run time."""
    by_job = {stake.job: stake for stake in stakes}
    return [
        gain
        if (stake := by_job.get(gain.job)) is None
        else gain.model_copy(
            update={
                "step_speedup_low": stake.slowdown.low,
                "step_speedup_high": stake.slowdown.high,
                "remaining_s": stake.remaining_s,
                "saved_low_s": stake.saved_s.low,
                "saved_high_s": stake.saved_s.high,
                "placements_measured": placements.get(gain.job, 0),
            }
        )
        for gain in gains
    ]


def admitted_gpu_s(hold: QueueHold | None, count: int, now: float, unknown_s: float) -> float:
    """Return the waiting time that a plan saves a pending job, in GPU-seconds.

    Counts until its reservation begins, or ``unknown_s`` where that time is unknown.
    """
    start = None if hold is None else hold.earliest_start
    return count * (unknown_s if start is None else max(start - now, 0.0))
