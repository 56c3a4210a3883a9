"""Ends jobs at their time limits, and warns before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from base import clock
from controller.base.texts import duration
from controller.ranks.ends import JobEnder
from controller.state.events import KEPT
from controller.state.records import JobRecord
from controller.state.state import State
from scheduler.model import TimeLimitAction

WARN_SHARE = 0.1
WARN_S = 300.0
"""A job is warned when this share of its limit is left, or these seconds if they are fewer."""
NEAR = "TimeLimitNear"
"""Reason of the event that warns."""


@dataclass(slots=True, frozen=True)
class _Count:
    """How long a job had run at one moment of the steady clock, in seconds."""

    started_at: float
    ran_s: float
    at: float


def ended_by_limit(job: JobRecord) -> bool:
    """Whether a job has ended because its time limit was over."""
    limit_s = job.request.time_limit_s
    return job.state == "failed" and limit_s is not None and job.reason == _reason(limit_s)


def _reason(limit_s: float) -> str:
    return f"its time limit of {duration(limit_s)} ended it"


class TimeLimits:
    """Counts how long jobs run; a step of the wall clock ends none of them.

    All time since the job's start counts: frozen, dark and between restarts of its ranks too,
    because it holds its endpoints all the while. A new controller continues from the wall clock.
    """

    def __init__(
        self,
        state: State,
        ender: JobEnder,
        busy: Callable[[str], bool],
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        """``busy``: whether another operation works on a job: it is finished first."""
        self._state = state
        self._ender = ender
        self._busy = busy
        self._monotonic = monotonic
        self._counts: dict[str, _Count] = {}
        self._warned: set[tuple[str, float]] = set()
        """Jobs, with their starts, that have been warned."""
        self._told: dict[str, float] | None = None
        """By object: when an earlier controller warned last; None until it matters."""

    def check(self) -> None:
        """End the jobs whose limit is over, and warn those whose limit is near."""
        if self._state.command_lost:  # the newer controller ends them
            return
        limited = [
            job
            for job in self._state.jobs.values()
            if job.holding
            and job.started_at is not None
            and job.request.time_limit_s is not None
            and job.request.time_limit_action is TimeLimitAction.END
        ]
        self._counts = {job.name: self._count(job) for job in limited}
        self._warned &= {(job.name, job.started_at or 0.0) for job in limited}
        for job in limited:
            if self._ender.is_ending(job.name):
                continue
            limit_s = job.request.time_limit_s or 0.0
            count = self._counts[job.name]
            left_s = limit_s - count.ran_s - (self._monotonic() - count.at)
            if left_s <= 0 and not self._busy(job.name):
                self._end(job, limit_s)
            elif 0 < left_s <= min(WARN_S, WARN_SHARE * limit_s):
                self._warn(job, left_s)

    def _count(self, job: JobRecord) -> _Count:
        started_at = job.started_at or 0.0
        known = self._counts.get(job.name)
        if known is not None and known.started_at == started_at:
            return known
        ran_s = max(0.0, self._state.clock() - started_at)
        return _Count(started_at, ran_s, self._monotonic())

    def _end(self, job: JobRecord, limit_s: float) -> None:
        reason = _reason(limit_s)
        self._state.jobs.change(job.name, reason=f"its time limit of {duration(limit_s)} is over")
        self._ender.later(
            job.name, "failed", reason, grace_s=job.request.limit_grace_s, ranks_failed=False
        )

    def _warn(self, job: JobRecord, left_s: float) -> None:
        start = (job.name, job.started_at or 0.0)
        if start in self._warned:
            return
        self._warned.add(start)
        about = f"job/{job.name}"
        if self._told is None:  # once: many jobs may come near their limits together
            events = self._state.events.since(0, KEPT)
            self._told = {event.object: event.time for event in events if event.reason == NEAR}
        if self._told.get(about, float("-inf")) < start[1]:
            limit = duration(job.request.time_limit_s or 0.0)
            text = f"its time limit of {limit} ends it in {duration(round(left_s))}"
            self._state.events.add("warning", about, NEAR, text)
