"""What people see of a job's turn in the queue and of its placement. Pure."""

from __future__ import annotations

from controller.job_queue import Look
from controller.records import JobRecord
from controller.views import PlacementView, PlanHintView, WaitView
from scheduler.scores import Scorer


def wait_view(job: JobRecord, queue: Look) -> WaitView | None:
    """Return why a pending job waits; None until the queue was looked at."""
    hold = queue.holds.get(job.name)
    if hold is None:
        return None
    hint = queue.hints.get(job.name)
    return WaitView(
        position=queue.positions[job.name],
        queued=len(queue.holds),
        code=hold.code,
        reason=hold.reason,
        remedy=hold.remedy,
        reserved_at=hold.reserved_at,
        earliest_start=hold.earliest_start,
        moves_needed=hold.moves_needed,
        plan=None
        if hint is None
        else PlanHintView(
            moves=hint.moves,
            running_moves=hint.running_moves,
            jobs_paused=list(hint.jobs),
            paused_gpus=hint.gpus,
            command=f"lightloom plan --job {job.name}",
        ),
    )


def placement_view(job: JobRecord, scorer: Scorer) -> PlacementView | None:
    """Return the scores of a job's placement; None before it has one."""
    if not job.endpoints:
        return None
    scores, left = scorer.of(job.endpoints), scorer.left
    return PlacementView(
        span=scores.span,
        span_reachable=scores.span_reachable,
        idle=left.idle,
        largest_compact=left.largest,
        fragmentation=left.external,
        stranded=dict(left.stranded),
    )
