"""Which jobs a regroup must leave alone now, and until when. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from checkpoints.values import Scheme
from controller.state.records import JobRecord, JobSpec
from scheduler.model import Fabric, Request, Spread, SpreadBy
from scheduler.policy.budgets import PauseBudget, free_at, refusal_reason

KEPT_PAUSES = 100
"""Of one job; enough for any sensible budget of pauses per hour."""


@dataclass(slots=True, frozen=True)
class LeftAlone:
    """Why a job is left alone; ``until`` is None when no end is known."""

    reason: str
    until: float | None = None


def left_alone(
    jobs: Iterable[JobRecord], budget: PauseBudget, now: float, *, force: bool = False
) -> dict[str, LeftAlone]:
    """Return the jobs with endpoints that no plan may touch; ``force`` ignores budgets."""
    found: dict[str, LeftAlone] = {}
    for job in jobs:
        if not job.holding:
            continue
        if job.request.pinned:
            found[job.name] = LeftAlone("it is pinned by its owner")
        elif job.state == "starting":
            found[job.name] = LeftAlone("it is starting")
        elif not force:
            pauses = sorted(job.pauses.values())
            reason = refusal_reason(budget, pauses, now)
            if reason:
                at = free_at(budget, pauses, now)
                found[job.name] = LeftAlone(reason, None if at == float("inf") else at)
    return found


def pinned(fabric: Fabric, alone: Iterable[str]) -> Fabric:
    """Return the fabric with these jobs pinned."""
    names = set(alone)
    jobs = tuple(replace(j, pinned=True) if j.name in names else j for j in fabric.jobs)
    return replace(fabric, jobs=jobs)


def with_pause(pauses: Mapping[str, float], transaction: str, now: float) -> dict[str, float]:
    """Return a job's history with one more transaction that moved its light."""
    kept = sorted({**pauses, transaction: now}.items(), key=lambda item: item[1])
    return dict(kept[-KEPT_PAUSES:])


def scheduler_request(job: JobRecord) -> Request:
    """Return what the scheduler needs to place a job."""
    request = job.request
    return Request(
        job=job.name,
        count=request.count,
        locality=request.locality,
        rank_order=request.rank_order,
        model=request.model,
        min_memory_bytes=request.min_memory_bytes,
        endpoints=tuple(request.endpoints),
        volumes=frozenset(volume.volume for volume in request.volumes),
        spread=spread_of(request),
        spares=request.spares,
        spares_needed=request.spares_needed,
    )


def spread_of(request: JobSpec) -> Spread | None:
    """Return how far a job's endpoints must be apart for its checkpoints' copies, None if not.

    Partners are two halves; of each XOR set one rank is in a group.
    """
    checkpoint = request.checkpoint
    if checkpoint is None or request.count < 2:
        return None
    if checkpoint.copies.scheme is Scheme.PARTNER:
        most = request.count // 2
    elif checkpoint.copies.scheme is Scheme.XOR:
        most = request.count // checkpoint.copies.set_size
    else:
        return None
    return Spread(SpreadBy(checkpoint.copies.apart.value), max(most, 1))


def no_longer_apart(
    jobs: Iterable[JobRecord],
    before: Mapping[str, str | None],
    after: Mapping[str, str | None],
) -> list[str]:
    """Return, in words, which jobs' copies of checkpoints a move of light brings together.

    ``before`` and ``after`` are endpoints' homes. Light changes no server: only jobs that keep
    copies under other aggregators can be affected.
    """
    found = []
    for job in jobs:
        spread = spread_of(job.request) if job.holding else None
        if spread is None or spread.by is not SpreadBy.AGGREGATOR:
            continue
        crowds = Counter(home for e in job.endpoints if (home := after.get(e)) is not None)
        then = Counter(before.get(e) for e in job.endpoints)
        for home, count in sorted(crowds.items()):
            if count > spread.most and count > then[home]:
                found.append(
                    f"{count} endpoints of job {job.name} will be under {home}: with more than "
                    f"{spread.most}, not all of its checkpoints have copies elsewhere"
                )
    return found


def without(fabric: Fabric, promised: Iterable[str]) -> Fabric:
    """Return the fabric without endpoints that are promised to another job."""
    return replace(fabric, unavailable=fabric.unavailable | frozenset(promised))
