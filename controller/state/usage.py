"""Accounts for what jobs hold: compares the state with the ledger and notes what differs.

Part of the state. It checks a job when its record changes or a regroup freezes it, and all jobs
once a second: what changed in another way is noted then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from base.clock import SteadyClock
from controller.state.jobs import Jobs
from controller.state.light import Light
from controller.state.records import JobRecord
from controller.state.scheduling import spread_of
from controller.state.transactions import Transactions
from controller.usage.interval import ChargedJob, Level, UsageInterval
from controller.usage.ledger import UsageLedger
from scheduler.metrics import SpanBound, span
from scheduler.model import Fabric, Site

STEP_S = 1.0
"""A difference between the clocks from which the wall clock counts as set."""


class UsageMeter:
    """Keeps the ledger equal to what the jobs hold.

    Lengths are those of a steady clock; a step of the wall clock moves dates only.
    """

    def __init__(
        self,
        site: Site,
        light: Light,
        transactions: Transactions,
        clock: Callable[[], float],
    ) -> None:
        self.ledger = UsageLedger()
        self._light = light
        self._transactions = transactions
        self._endpoints = {endpoint.name: endpoint for endpoint in site.endpoints}
        self._bound = SpanBound(Fabric(site, {}))
        self._clock = clock
        self._steady = SteadyClock(clock)

    @property
    def now(self) -> float:
        """The time of the ledger, in seconds since 1970."""
        return self._steady()

    def restore(self, intervals: Iterable[UsageInterval], last: int, jobs: Jobs) -> None:
        """Take over the stored intervals; void those of jobs that hold nothing."""
        self.ledger.restore(intervals, last, self.now)
        for name, interval in list(self.ledger.open.items()):
            job = jobs.get(name)
            if job is None or not job.holding or _account(job) != interval.account:
                self.ledger.void(name)
        for job in jobs.values():
            if job.holding and job.name not in self.ledger.open:  # from before there was a ledger
                began = min(job.started_at or self.now, self.now)
                level = self._level(job, frozen=job.state == "paused")
                self.ledger.note(_account(job), level, began, first=True)

    def changed(self, before: JobRecord | None, job: JobRecord, jobs: Jobs) -> None:
        """Note a job's new record."""
        if not job.holding and job.name not in self.ledger.open:
            return
        if job.state == "pending" and not job.epoch:
            self.ledger.void(job.name)  # its first start was refused
            return
        self._note(job, jobs, first=before is None or not before.epoch)

    def update(self, jobs: Jobs) -> None:
        """Note every job that holds endpoints, and a step of the wall clock."""
        step = self._clock() - self._steady()
        if abs(step) > STEP_S:
            self._steady = SteadyClock(self._clock)
            self.ledger.stepped(step)
        for name in list(self.ledger.open):
            if name in jobs:
                self._note(jobs[name], jobs)

    def look_at(self, names: Iterable[str], jobs: Jobs) -> None:
        """Note these jobs: a transaction froze them, or they run again."""
        for name in names:
            if name in self.ledger.open:
                self._note(jobs[name], jobs)

    def charge_dark(self, job: JobRecord, dark: Iterable[tuple[float, float]]) -> None:
        """Charge a job for endpoints that had no light until just now.

        Each is a pair of readings, broken and whole, of a clock that may differ from the ledger's.
        """
        times = list(dark)
        if times:
            lasted_s = max(whole for _, whole in times) - min(broken for broken, _ in times)
            dark_s = sum(whole - broken for broken, whole in times)
            now = self.now
            self.ledger.charge_dark(_account(job), dark_s, now - lasted_s, now)

    def closing(self, name: str) -> tuple[UsageInterval, ...]:
        """Return what to write with a job's end."""
        return self.ledger.closing(name, self.now)

    def _note(self, job: JobRecord, jobs: Jobs, *, first: bool = False) -> None:
        level = None
        if job.holding:
            still = job.name in self._transactions.still() or job.name in jobs.owed
            level = self._level(job, frozen=still or job.state == "paused")
        self.ledger.note(_account(job), level, self.now, first=first)

    def _level(self, job: JobRecord, *, frozen: bool) -> Level:
        places = self._light.attachments
        cabled = [e for e in job.endpoints if e in self._endpoints]
        held = len(job.endpoints) + len(job.spares)
        if not cabled:
            return Level(held, frozen)
        homes = {e: places[e].aggregator for e in cabled if e in places}
        least = self._bound.least([self._endpoints[e] for e in cabled], spread_of(job.request))
        return Level(held, frozen, span(cabled, homes) / max(1, least))


def _account(job: JobRecord) -> ChargedJob:
    return ChargedJob(job.name, job.submitted_at, job.request.project, job.user)
