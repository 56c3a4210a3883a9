"""Translates the controller's jobs for ``scheduler.queue.decide``, and its decisions back. Pure.

Only the job records, and the promises to jobs for which others were stopped, persist from one
decision to the next: equal jobs, fabric and time give equal starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from controller.state.queue import Hint, QueueReport
from controller.state.records import JobRecord
from controller.state.scheduling import scheduler_request
from scheduler.model import Fabric, Job, Policy, Request
from scheduler.placement.index import FabricIndex
from scheduler.queue.decide import decide
from scheduler.queue.model import (
    Decisions,
    Pending,
    ProjectShare,
    Promise,
    QueuePolicy,
    RunningJob,
    StartedJob,
)
from scheduler.regroup import make_room

HINTS = 3
"""Number of jobs at the head of the queue for which a regroup is sought that makes room."""


def pending(
    jobs: Iterable[JobRecord],
    promises: Mapping[str, Promise] = MappingProxyType({}),
    avoid: Mapping[str, frozenset[str]] = MappingProxyType({}),
) -> list[Pending]:
    """Return the waiting jobs in the order of submission.

    ``promises`` belong to jobs for which others were stopped, ``avoid`` has endpoints that refused
    to start a job.
    """
    return [
        Pending(
            request=_request(job, avoid.get(job.name)),
            submitted_at=job.submitted_at,
            project=job.request.project,
            priority=job.request.priority,
            run_time_s=job.request.longest_run_s,
            policy=Policy(job.request.policy),
            pinned=job.request.pinned,
            preemptible=job.request.preemptible,
            reserved_at=job.reserved_at,
            could_start_at=job.could_start_at,
            promise=promises.get(job.name),
        )
        for job in jobs
        if job.state == "pending"
    ]


def _request(job: JobRecord, avoid: frozenset[str] | None) -> Request:
    request = scheduler_request(job)
    return request if avoid is None else replace(request, avoid=avoid)


def running(
    jobs: Iterable[JobRecord], now: float, held: frozenset[str] = frozenset()
) -> list[RunningJob]:
    """Return the jobs that hold endpoints, with their expected ends.

    Jobs that a transaction has ``held`` cannot be preempted now.
    """
    found = []
    for job in jobs:
        if job.holding:
            started = now if job.started_at is None else job.started_at
            limit = job.request.longest_run_s
            end = None if limit is None else started + limit
            found.append(
                RunningJob(
                    job.name,
                    job.request.project,
                    job.request.priority,
                    started,
                    end,
                    preemptible=job.request.preemptible
                    and job.state == "running"
                    and job.name not in held,
                )
            )
    return found


def began(jobs: Iterable[JobRecord], after: float) -> list[StartedJob]:
    """Return the jobs that started after a time, including those that have ended since."""
    return [
        StartedJob(
            job.name,
            job.submitted_at,
            job.started_at,
            job.request.project,
            job.request.priority,
            scheduler_request(job),
        )
        for job in jobs
        if job.started_at is not None and job.started_at > after
    ]


def decide_and_explain(
    fabric: Fabric,
    jobs: Iterable[JobRecord],
    projects: Iterable[ProjectShare],
    policy: QueuePolicy,
    movable: Callable[[str], bool],
    *,
    promises: Mapping[str, Promise] = MappingProxyType({}),
    avoid: Mapping[str, frozenset[str]] = MappingProxyType({}),
    held: frozenset[str] = frozenset(),
    now: float,
) -> tuple[Decisions, QueueReport]:
    """Decide which jobs start now, and explain why the others wait.

    ``movable`` gives the running jobs that a regroup may touch; the hints respect it. ``promises``
    belong to jobs for which others were stopped; ``avoid`` has endpoints that refused to start a
    job; ``held`` jobs cannot be preempted now.
    """
    records = list(jobs)
    waiting = pending(records, promises, avoid)
    taken = running(records, now, held)
    lately = began(records, now - policy.patience_s)
    decisions = decide(fabric, waiting, taken, projects, policy, began=lately, now=now)
    holds = {hold.job: hold for hold in decisions.holds}
    requests = {job.name: job.request for job in waiting}
    hints: dict[str, Hint] = {}
    index: FabricIndex | None = None
    for hold in [h for h in decisions.holds if h.moves_needed][:HINTS]:
        index = index or _after(fabric, decisions)
        found = make_room.estimate(index, requests[hold.job], movable)
        if found is not None:
            busy = sum(index.owner[index.number[m.endpoint]] is not None for m in found.moves)
            hints[hold.job] = Hint(len(found.moves), busy, found.others, found.others_gpus)
    positions = {name: at for at, name in enumerate(holds, 1)}
    return decisions, QueueReport(holds, positions, hints)


def _after(fabric: Fabric, decisions: Decisions) -> FabricIndex:
    """Return the fabric after the starts that were decided on."""
    index = FabricIndex(fabric)
    for start in decisions.starts:
        placed = start.placement
        index.start(Job(start.job, placed.endpoints, spares=placed.spares), placed.moves)
    return index
