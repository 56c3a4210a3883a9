"""A question about usage and its answer: sums over a window, by project, user or job. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from controller.usage.interval import ChargedJob, UsageInterval, UsageSums

By = Literal["project", "user", "job"]
MOST_LINES = 500
"""Jobs of one answer: those that held most; the others are one sum."""

Key = tuple[str | float, ...]
"""What a line is about: (project,), (user,) or (job, submitted at, project, user)."""


@dataclass(slots=True, frozen=True)
class UsageQuery:
    """What is asked: from ``since`` up to, not including, ``until``, in seconds since 1970."""

    since: float
    until: float
    by: By
    projects: frozenset[str] | None = None
    """Only usage of these; None is all."""

    def key(self, account: ChargedJob) -> Key:
        """Return the line that an account belongs to."""
        if self.by == "project":
            return (account.project,)
        if self.by == "user":
            return (account.user,)
        return (account.job, account.submitted_at, account.project, account.user)

    def shows(self, project: str) -> bool:
        """Whether usage of this project counts."""
        return self.projects is None or project in self.projects


@dataclass(slots=True, frozen=True)
class Kept:
    """What a store has for a window: at most ``MOST_LINES`` lines, and the sum of all."""

    lines: Mapping[Key, UsageSums]
    total: UsageSums


@dataclass(slots=True, frozen=True)
class UsageReport:
    """The answer: lines with the largest first, the sum of the others, and the sum of all."""

    lines: Mapping[Key, UsageSums]
    others: UsageSums
    total: UsageSums


def answer(window: UsageQuery, kept: Kept, live: Iterable[UsageInterval]) -> UsageReport:
    """Add the intervals that the store does not have as they are, and cut the list."""
    lines, total = dict(kept.lines), kept.total
    for interval in live:
        if not window.shows(interval.account.project):
            continue
        part = interval.sums(window.since, window.until)
        if part == UsageSums():
            continue
        key = window.key(interval.account)
        lines[key] = lines.get(key, UsageSums()) + part
        total += part
    ranked = sorted(lines.items(), key=lambda line: (-line[1].held_s, line[0]))
    shown = dict(ranked[:MOST_LINES])
    return UsageReport(shown, _less(total, sum(shown.values(), UsageSums())), total)


def _less(total: UsageSums, known: UsageSums) -> UsageSums:
    """Return what is left of a total, without what adding up in another order leaves."""
    return UsageSums(
        held_s=_left(total.held_s, known.held_s),
        frozen_s=_left(total.frozen_s, known.frozen_s),
        dark_s=_left(total.dark_s, known.dark_s),
        weighted_s=_left(total.weighted_s, known.weighted_s),
        jobs=total.jobs - known.jobs,
    )


def _left(total: float, known: float) -> float:
    return max(0.0, round(total - known, 3))
