"""Documents of what is known of another engine, and of what was done for its jobs."""

from __future__ import annotations

from collections.abc import Iterable

from controller.base.texts import shown
from controller.devices.observed import SetupCheck
from controller.observed.allocation import Allocated
from controller.observed.fold import name_of
from controller.observed.publisher import PublishedState
from controller.observed.waiting import Helped
from controller.schema.engine import (
    AllocationAnswerView,
    EngineChecksView,
    EngineCheckView,
    PublishedView,
    WaitingAnswerView,
)


def published_view(published: PublishedState) -> PublishedView:
    """Return what is known of the engine's topology."""
    return PublishedView(
        epoch=published.epoch,
        at=published.at,
        took_s=published.took_s,
        error=shown(published.error),
        differences=[shown(text) for text in published.differences],
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


def checks_view(kind: str, checks: Iterable[SetupCheck]) -> EngineChecksView:
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
