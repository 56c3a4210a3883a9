"""Limits how often a job is paused: by a cool-down and by pauses per job-hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

HOUR_S = 3600.0
_ROUNDING = 1e-9


@dataclass(slots=True, frozen=True)
class PauseBudget:
    """Limits on the pauses of a job. The defaults set no limit."""

    cooldown_s: float = 0.0
    """Seconds after a move of its light in which the job is not paused."""
    max_pauses_per_job_hour: float | None = None
    """0.5 is one pause in two hours; None is unlimited."""


def free_at(budget: PauseBudget, pauses: Sequence[float], now: float) -> float:
    """Return the time from which the job may be paused again: ``now`` if it may be already.

    ``pauses`` are the times of earlier pauses, oldest first.
    """
    at = now
    if pauses and budget.cooldown_s > 0:
        at = max(at, pauses[-1] + budget.cooldown_s)
    per_hour = budget.max_pauses_per_job_hour
    if per_hour is None:
        return at
    if per_hour <= 0:
        return float("inf")
    window_s = HOUR_S * max(1.0, 1.0 / per_hour)
    allowed = floor(per_hour * window_s / HOUR_S + _ROUNDING)
    if len(pauses) >= allowed:
        at = max(at, pauses[-allowed] + window_s)
    return at


def refusal_reason(budget: PauseBudget, pauses: Sequence[float], now: float) -> str:
    """Return why the job must not be paused now; empty if it may be."""
    at = free_at(budget, pauses, now)
    if at <= now:
        return ""
    if at == float("inf"):
        return "its budget of pauses is 0"
    if pauses and budget.cooldown_s > 0 and now < pauses[-1] + budget.cooldown_s:
        ago = now - pauses[-1]
        return f"it was moved {ago:.0f} s ago, its cool-down is {budget.cooldown_s:g} s"
    return (
        f"it was paused {len(pauses)} times, its budget is {budget.max_pauses_per_job_hour:g}"
        f" an hour; free in {at - now:.0f} s"
    )
