"""Sees the first step of a job that was recovered, and closes the row.

Evidence is, whichever comes first, an operation that the recorder counted, a step that it wrote, or
traffic: ranks that send half as much as before the loss, or all of them a part of it for some
seconds (elsewhere its links may be slower). Less proves nothing: ranks look for each other, spread
the first weights, and their servers copy checkpoints over the same links. A job that gives no
evidence, or that waits in the queue, has an open row until it steps or ends.

A majority of ranks that sends anything before has imported its framework: it looks for the others.
When a program has loaded its checkpoint shows nowhere: that is part of the way to its first step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from statistics import fmean

from controller.base import failpoints
from controller.base.errors import ServiceError
from controller.state.kept.recoveries import RecoveryRecord
from controller.state.records import JobRecord
from controller.state.state import State
from controller.swaps.contract import JobCheckpoints, reached
from controller.swaps.rows import Rows

TRAFFIC_BPS = 10_000.0
"""More than heartbeats and TCP's probes."""
AS_BEFORE = 0.5
"""Share of what a job's ranks sent before the loss that one reading must reach."""
SLOWER = 0.2
"""Share that every rank must send in ``LASTING`` readings; copies are paced at less."""
LASTING = 5
SMOOTHING = 0.2
"""Of what ranks send, per second in which they communicate."""
TALK_BPS = 2_000.0
"""More than the kernel's answers to ARP."""
COUNTED_S = 2.5
"""After a start, until rates are those of the new run: counters are read once a second."""


class FirstSteps:
    """Looks at the recovered jobs; ``check`` is called about once a second."""

    def __init__(
        self,
        state: State,
        rows: Rows,
        checkpoints: JobCheckpoints,
        *,
        sent_bps: Callable[[str], float | None],
        communicates: Callable[[JobRecord], bool],
    ) -> None:
        """``sent_bps`` returns what an endpoint sends; ``communicates`` asks the recorder."""
        self._state = state
        self._rows = rows
        self._checkpoints = checkpoints
        self._sent_bps = sent_bps
        self._communicates = communicates
        self._usual: dict[str, float] = {}
        """By job: what a rank sends a second, in seconds in which the job communicates."""
        self._lasting: dict[str, int] = {}
        """By row: readings one after the other in which every rank sent."""

    async def check(self) -> None:
        """Close the rows of jobs that have made a step, or that run no more."""
        state = self._state
        rows = state.recoveries.open()
        self._remember({record.job for record in rows})
        self._lasting = {r.id: self._lasting[r.id] for r in rows if r.id in self._lasting}
        for record in rows:
            job = state.jobs.get(record.job)
            if job is None or job.submitted_at != record.submitted_at or job.ended:
                self._rows.end(record.id)
                state.journal.owe(*self._rows.writes(record.id))
            elif record.stage == "started" and job.state == "running" and job.epoch > record.epoch:
                if self._stepped(job, record):
                    await self._close(record)
                elif "imported" not in record.marks and self._imported(job, record):
                    self._rows.mark(record.id, "imported")
                    state.journal.owe(*self._rows.writes(record.id))

    async def _close(self, record: RecoveryRecord) -> None:
        self._checkpoints.stepped(record.job)
        async with failpoints.around("swap-first"):
            ended = self._rows.end(record.id, stepped=True)
            lasted_s = (ended.finished_at or ended.failed_at) - ended.failed_at
            text = f"its first new step, {lasted_s:.1f} s after the loss"
            self._state.events.add("info", f"job/{record.job}", "JobStepsAgain", text)
            with contextlib.suppress(ServiceError):  # the journal writes it with the next commit
                await self._state.record(*self._rows.writes(record.id))

    def _remember(self, recovering: Collection[str]) -> None:
        """Learn what the ranks of jobs that run undisturbed send."""
        jobs = self._state.jobs
        self._usual = {name: bps for name, bps in self._usual.items() if name in jobs}
        for job in jobs.values():
            running = job.state == "running" and job.owner.starts
            if not running or job.name in recovering or len(job.endpoints) < 2:
                continue
            mean = fmean(self._sent_bps(e) or 0.0 for e in job.endpoints)
            if mean > TRAFFIC_BPS:
                usual = self._usual.get(job.name, mean)
                self._usual[job.name] = usual + SMOOTHING * (mean - usual)

    def _stepped(self, job: JobRecord, record: RecoveryRecord) -> bool:
        if reached(self._checkpoints, job.name, job.epoch) is not None or self._communicates(job):
            return True
        sent = self._sent(job, record)
        if len(sent) < 2:
            return False
        usual = self._usual.get(job.name, 0.0)
        if usual and fmean(sent) >= AS_BEFORE * usual:
            return True
        goes_on = min(sent) > max(TRAFFIC_BPS, SLOWER * usual)
        lasting = self._lasting[record.id] = self._lasting.get(record.id, 0) + 1 if goes_on else 0
        return lasting >= LASTING

    def _imported(self, job: JobRecord, record: RecoveryRecord) -> bool:
        sent = self._sent(job, record)
        return 2 * sum(bps > TALK_BPS for bps in sent) > len(sent)

    def _sent(self, job: JobRecord, record: RecoveryRecord) -> list[float]:
        """Return what each rank sends; nothing while rates may be the lost run's."""
        since = self._rows.since(record.id, "started")
        # A queued row has no such moment, and one from before a restart of the controller no clock.
        timed = record.how != "queue" and not record.broken
        if (timed and since is None) or (since is not None and since < COUNTED_S):
            return []
        return [self._sent_bps(e) or 0.0 for e in job.endpoints]
