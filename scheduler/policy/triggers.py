"""Decides when to plan a regroup without a request.

All triggers are off by default. The pause budgets (``scheduler.policy.budgets``) and the
comparison of gain and cost (``scheduler.policy.worth``) decide whether a planned regroup is
carried out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DAY_S = 86400.0


class Trigger(StrEnum):
    """The reason for planning a regroup."""

    MANUAL = "manual"
    PENDING = "pending"
    THRESHOLD = "threshold"
    SCHEDULE = "schedule"


@dataclass(slots=True, frozen=True)
class TriggerPolicy:
    """Which triggers are on, and their parameters."""

    excess_span: int | None = None
    """Threshold: total excess span of the running jobs."""
    excess_for_s: float = 60.0
    """Threshold: seconds for which it must last."""
    pending: bool = False
    """A job waits that could start after a regroup."""
    every_s: float | None = None
    """Schedule: seconds after the last scheduled run."""
    daily_at_s: tuple[float, ...] = ()
    """Schedule: seconds after midnight UTC, every day."""
    min_interval_s: float = 300.0
    """Least time between two triggered runs, in seconds."""

    @property
    def automatic(self) -> bool:
        """True when any trigger is on."""
        return bool(
            self.excess_span is not None
            or self.pending
            or self.every_s is not None
            or self.daily_at_s
        )


@dataclass(slots=True, frozen=True)
class Blocked:
    """A pending job that could start after this many moves of running endpoints."""

    job: str
    moves_needed: int


@dataclass(slots=True, frozen=True)
class TriggerInput:
    """Input of the triggers at one moment."""

    now: float
    """Seconds since the epoch."""
    excess_span: int
    """Excess span of all running jobs together."""
    excess_since: float | None
    """Time since which it has been at or above the threshold (``excess_since``)."""
    blocked: tuple[Blocked, ...] = ()
    """In the order of the queue."""
    looked_at: float | None = None
    """When a trigger last fired."""
    scheduled_at: float = 0.0
    """When the schedule last fired, or when the controller started."""


@dataclass(slots=True, frozen=True)
class Fired:
    """A trigger that fired, and why."""

    trigger: Trigger
    reason: str
    job: str | None = None
    """The pending job to make room for."""


def excess_since(
    policy: TriggerPolicy, since: float | None, excess_span: int, now: float
) -> float | None:
    """Return the time since which the excess span has been at the threshold, None if below."""
    if policy.excess_span is None or excess_span < max(policy.excess_span, 1):
        return None
    return now if since is None else since


def fire(policy: TriggerPolicy, moment: TriggerInput) -> Fired | None:
    """Return the first trigger that fires now: pending, threshold, schedule; None without one."""
    now = moment.now
    if moment.looked_at is not None and now - moment.looked_at < policy.min_interval_s:
        return None
    if policy.pending and moment.blocked:
        first = moment.blocked[0]
        reason = f"job {first.job} waits for {first.moves_needed} moves of running endpoints"
        return Fired(Trigger.PENDING, reason, first.job)
    since = moment.excess_since
    if policy.excess_span is not None and since is not None and now - since >= policy.excess_for_s:
        reason = (
            f"excess span has been {policy.excess_span} or more for {now - since:.0f} s,"
            f" it is {moment.excess_span}"
        )
        return Fired(Trigger.THRESHOLD, reason)
    due = _due(policy, moment.scheduled_at, now)
    return Fired(Trigger.SCHEDULE, due) if due else None


def _due(policy: TriggerPolicy, since: float, now: float) -> str:
    if policy.every_s is not None and now - since >= policy.every_s:
        return f"every {policy.every_s:g} s"
    for at in policy.daily_at_s:
        latest = (now - at) // DAY_S * DAY_S + at
        if since < latest <= now:
            return f"daily at {int(at) // 3600:02d}:{int(at) % 3600 // 60:02d} UTC"
    return ""
