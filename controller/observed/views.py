"""Shows how it stands with another engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from controller.base.texts import shown
from controller.devices.observed import Check
from controller.observed.allocation import Allocated
from controller.observed.desk import EngineStatus
from controller.observed.fold import name_of
from controller.observed.waiting import Helped
from controller.schema.engine import (
    AllocationAnswerView,
    EngineChecksView,
    EngineCheckView,
    EngineView,
    PublishedView,
    WaitingAnswerView,
)


def engine_view(status: EngineStatus, isolation: Literal["open", "job"]) -> EngineView:
    """Return how it stands with the engine."""
    reach, published = status.reach, status.published
    return EngineView(
        kind=status.kind,
        up=reach.up,
        since=reach.since,
        detail=shown(reach.detail),
        version=shown(reach.version),
        transport=reach.transport,
        missing=[shown(text) for text in reach.missing],
        isolation=isolation,
        endpoints=status.endpoints,
        jobs=status.jobs,
        waiting=status.waiting,
        left_out=status.left_out,
        published=None
        if published is None
        else PublishedView(
            epoch=published.epoch,
            at=published.at,
            took_s=published.took_s,
            error=shown(published.error),
            differences=[shown(text) for text in published.differences],
        ),
        allocations=[allocation_view(done) for done in status.allocations],
        helped=[waiting_view(done) for done in status.helped],
        slowest_s=status.slowest_s,
    )


def allocation_view(done: Allocated) -> AllocationAnswerView:
    """Return what was done for an allocation."""
    return AllocationAnswerView(
        job=name_of(done.key),
        id=done.key.partition(":")[2],
        attempt=done.attempt,
        verdict=done.verdict.value,
        text=shown(done.text),
        moves=done.moves,
        transaction=done.transaction,
        engine_s=done.engine_s,
        plan_s=done.plan_s,
        light_s=done.light_s,
        at=done.at,
    )


def waiting_view(done: Helped) -> WaitingAnswerView:
    """Return what was done for a job in the engine's queue."""
    return WaitingAnswerView(
        job=done.job,
        text=shown(done.text),
        moves=done.moves,
        transaction=done.transaction,
        plan_s=done.plan_s,
        light_s=done.light_s,
        publish_s=done.publish_s,
        at=done.at,
    )


def checks_view(kind: str, checks: Iterable[Check]) -> EngineChecksView:
    """Return the examination of an engine's set-up."""
    views = [
        EngineCheckView(
            subject=shown(line.subject),
            grade=line.grade,
            found=shown(line.found),
            mend=shown(line.mend),
        )
        for line in checks
    ]
    return EngineChecksView(kind=kind, ok=all(v.grade != "fault" for v in views), checks=views)
