"""How often a job may be disturbed: cool-down, and pauses per job-hour from its history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

HOUR_S = 3600.0
_ROUNDING = 1e-9


@dataclass(slots=True, frozen=True)
class PauseBudget:
    """What a job bears. The defaults leave it to the operator."""

    cooldown_s: float = 0.0
    """A job is left alone for so long after its light was moved."""
    max_pauses_per_job_hour: float | None = None
    """0.5 is one pause in two hours; None is no limit."""


def free_at(budget: PauseBudget, pauses: Sequence[float], now: float) -> float:
    """Return from when on a job may be disturbed again: ``now`` when it may already.

    ``pauses`` are the times of earlier ones, oldest first.
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


def why_not(budget: PauseBudget, pauses: Sequence[float], now: float) -> str:
    """Say why a job must be left alone now; empty when it need not be."""
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
