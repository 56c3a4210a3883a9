"""The ledger: what jobs hold, as intervals. Pure: the caller passes what changed and when.

A job has at most one interval that goes on. A change of its level ends that one and begins
another, so no moment is counted twice and none is left out. The store keeps every interval by its
id; writing one again replaces it, so a write that is repeated changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from controller.usage.interval import ChargedJob, Level, UsageInterval, UsageSums

MOST_UNWRITTEN = 10_000
"""Intervals that wait for the store; beyond them jobs keep the level that they have."""
_DARK = Level(0)


class UsageLedger:
    """The intervals that go on, and those that are not durable yet."""

    def __init__(self) -> None:
        self._open: dict[str, UsageInterval] = {}
        self._unwritten: dict[int, UsageInterval] = {}
        self._taken: dict[int, UsageInterval] = {}
        """Those that were last taken to be written."""
        self._ended: dict[str, UsageSums] = {}
        """By project: everything that ended since the start of this controller."""
        self._last = 0
        self._since = -math.inf
        """When this controller took over the ledger; ``totals`` counts from then on."""

    @property
    def open(self) -> Mapping[str, UsageInterval]:
        """The intervals that go on, by job."""
        return self._open

    def live(self) -> tuple[UsageInterval, ...]:
        """Return the intervals that go on, and all that the store may not have as they are."""
        going_on = {interval.id: interval for interval in self._open.values()}
        return tuple((self._taken | self._unwritten | going_on).values())

    def restore(self, intervals: Iterable[UsageInterval], last: int, now: float) -> None:
        """Take over the stored intervals that go on; ``last`` is the highest id of all.

        A clock that was set back meanwhile takes nothing away: such an interval begins now.
        """
        for interval in intervals:
            self._open[interval.account.job] = replace(interval, since=min(interval.since, now))
        self._last, self._since = last, now

    def note(
        self, account: ChargedJob, level: Level | None, now: float, *, first: bool = False
    ) -> None:
        """Record what a job holds from ``now`` on; None is nothing."""
        current = self._open.get(account.job)
        if current is not None and current.account != account:
            self._close(current, now)
            current = None
        if current is None:
            if level is not None:
                self._begin(account, level, now, first=first)
        elif level is None:
            self._close(current, now)
        elif level != current.level and len(self._unwritten) < MOST_UNWRITTEN:
            self._close(current, now)
            self._begin(account, level, now)

    def void(self, job: str) -> None:
        """Undo a beginning that never was: the job's start did not become durable."""
        current = self._open.pop(job, None)
        if current is not None:
            never = replace(current, until=current.since, first=False)
            self._unwritten[never.id] = never

    def charge_dark(self, account: ChargedJob, dark_s: float, since: float, until: float) -> None:
        """Charge a job ``dark_s`` endpoint-seconds without light between two moments."""
        if dark_s > 0 and until > since:
            self._keep_ended(
                UsageInterval(
                    id=self._next(),
                    account=account,
                    level=_DARK,
                    since=since,
                    until=until,
                    dark_s=dark_s,
                )
            )

    def closing(self, job: str, now: float) -> tuple[UsageInterval, ...]:
        """Return what to write if the job ends now; the ledger itself does not change."""
        current = self._open.get(job)
        return () if current is None else (_ended(current, now),)

    def stepped(self, by_s: float) -> None:
        """Move what goes on by a step of the clock: how long it has gone on stays the same."""
        for job, interval in self._open.items():
            moved = replace(interval, since=interval.since + by_s)
            self._open[job] = self._unwritten[moved.id] = moved
        self._since += by_s

    def take_unwritten(self) -> tuple[UsageInterval, ...]:
        """Remove and return the intervals that are not durable yet."""
        self._taken, self._unwritten = self._unwritten, {}
        return tuple(self._taken.values())

    def give_back(self, intervals: Iterable[UsageInterval]) -> None:
        """Keep intervals for the next write, because this one failed; newer ones stay."""
        for interval in intervals:
            self._unwritten.setdefault(interval.id, interval)

    def totals(self, now: float) -> Mapping[str, UsageSums]:
        """Return, by project, everything since this controller took over the ledger."""
        found = dict(self._ended)
        for interval in self._open.values():
            project = interval.account.project
            found[project] = found.get(project, UsageSums()) + interval.sums(self._since, now)
        return found

    def _begin(self, account: ChargedJob, level: Level, now: float, *, first: bool = False) -> None:
        begun = UsageInterval(id=self._next(), account=account, level=level, since=now, first=first)
        self._open[account.job] = self._unwritten[begun.id] = begun

    def _close(self, current: UsageInterval, now: float) -> None:
        del self._open[current.account.job]
        self._keep_ended(_ended(current, now))

    def _keep_ended(self, interval: UsageInterval) -> None:
        self._unwritten[interval.id] = interval
        project = interval.account.project
        before = self._ended.get(project, UsageSums())
        self._ended[project] = before + interval.sums(self._since, math.inf)

    def _next(self) -> int:
        self._last += 1
        return self._last


def _ended(interval: UsageInterval, now: float) -> UsageInterval:
    return replace(interval, until=max(now, interval.since))
