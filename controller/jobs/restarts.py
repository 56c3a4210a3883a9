"""Handles the death of a rank or the loss of its GPU: the whole job ends, or starts again.

The ranks of a job work in step, so the others cannot continue without it. They are stopped, and
started again on the same endpoints. If one of these is out of use, ``controller.swaps`` brings the
job back, with spares where there are any, or by way of the queue.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace

import structlog

from controller.base.errors import ServiceError
from controller.base.tasks import Tasks
from controller.jobs.keeper import JobKeeper
from controller.ranks.ends import JobEnder
from controller.schema.submit.request import RESTART_PATTERN
from controller.state.records import Failure, JobRecord
from controller.state.state import State
from controller.swaps.contract import JobLoss
from controller.swaps.desk import SwapDesk
from controller.swaps.losses import surely_lost

log = structlog.get_logger(__name__)

HEALTH_S = 2.0
"""An agent's report of a GPU may come this much later than the end of the rank that used it."""
LOOK_EVERY_S = 0.1
REGROUP_S = 60.0
"""Until a regroup that could not resume a job is over; it only has to write its end."""
DEFAULT_TIMES = 3
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0


@dataclass(slots=True, frozen=True)
class RestartPolicy:
    """Whether and when a job whose rank died starts again: ``times`` limits the restarts."""

    times: int

    @classmethod
    def parse(cls, text: str) -> RestartPolicy:
        """Parse a text that matches :data:`RESTART_PATTERN`; ValueError for any other."""
        if re.fullmatch(RESTART_PATTERN, text) is None:
            raise ValueError(f"{text!r} is neither never nor on-failure[:N]")
        word, _, number = text.partition(":")
        if word == "never":
            return cls(0)
        return cls(int(number) if number else DEFAULT_TIMES)

    def wait_s(self, failures: int) -> float | None:
        """Return the seconds to wait after the ``failures``-th failure; None when it is final.

        The wait doubles every time, so that a job that cannot run does not keep a server busy.
        """
        if failures > self.times:
            return None
        return float(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (failures - 1)))


class JobRestarter:
    """Ends or restarts a job whose rank died, by its restart policy."""

    def __init__(
        self,
        state: State,
        ender: JobEnder,
        tasks: Tasks,
        jobs: JobKeeper,
        swaps: SwapDesk,
    ) -> None:
        self._state = state
        self._ender = ender
        self._tasks = tasks
        self._jobs = jobs
        self._swaps = swaps.swapper
        self._rows = swaps.rows
        self._checkpoints = swaps.checkpoints

    def rank_died(self, job: JobRecord, failure: Failure, restarted: str = "") -> None:
        """End the job, or begin to start it again if its policy allows another restart.

        A failure of this run that was noted earlier, before a restart of the controller, counts.
        Lost hardware is not the job's failure: it neither counts nor waits. A server that
        ``restarted``, and took its ranks with it, is such a loss; it works again.
        """
        loss = self._lost(job, failure)
        if restarted and not loss.dead:
            gone = replace(loss, cause="server", objects=(f"server/{restarted}",))
            if self._swaps.lose(job.name, gone):
                return
        if loss.dead and self._swaps.lose(job.name, loss):
            return
        if job.failure is not None and job.failure.epoch == job.epoch:
            failure = job.failure
        failures = job.failures + 1
        policy = RestartPolicy.parse(job.request.restart)
        wait_s = policy.wait_s(failures)
        often = f"restarted {policy.times} times already" if policy.times else ""
        if wait_s is None and self._swaps.takes(job) and not loss.dead:
            self._state.jobs.change(job.name, state="starting", reason=failure.cause)
            self._tasks.spawn(self._judge(job, failure, often), f"judge {job.name}")
            return
        if wait_s is None:
            self._state.jobs.change(job.name, failure=failure)
            self._ender.later(job.name, "failed", often)
            return
        again = f"restart {failures} of {policy.times} in {wait_s:g} s"
        self._state.jobs.change(
            job.name,
            state="starting",
            reason=f"{failure.cause}; {again}",
            failures=failures,
            failure=failure,
        )
        row = self._rows.begin(job, self._own(job, failure), "again")
        self._state.recoveries.change(row.id, stage="decided", why=again)
        self._tasks.spawn(self._restart(job.name, job.epoch, wait_s, again), f"restart {job.name}")

    async def _restart(self, name: str, epoch: int, wait_s: float, again: str) -> None:
        try:
            failed = self._state.jobs[name]
            failed_at = self._ended_at(failed)
            problem, failure = await self._ender.stop_failed(failed)
            self._report(failed, failure or failed.failure, again)
            if not problem:
                await self._waited(failed, failure or failed.failure, wait_s)
            now = self._state.jobs.get(name)
            if now is None or now.epoch != epoch or not self._still(now):
                return
            loss = self._lost(now, failure or failed.failure)
            if not loss.dead:
                loss = replace(await self._unanswered(now), failed_at=failed_at)
                if problem and not loss.dead:
                    problem = await self._ender.stop(now)
                if not self._still(now):
                    return
            if problem and not loss.dead:
                await self._ender.end(name, "failed", problem)
            elif loss.dead:
                self._state.jobs.change(name, failures=now.failures - 1)
                self._swaps.lose(name, loss, stopped=True)
            else:
                self._checkpoints.ended(name, "own")
                self._started(now, queued=await self._jobs.start_again(name))
        except ServiceError as error:
            await self._ender.end(name, "failed", f"did not start again: {error.message}")

    async def _judge(self, job: JobRecord, failure: Failure, often: str) -> None:
        """Wait for the agent's report of the GPU before a rank's end is the end of the job.

        ``often`` is the text of how often it was restarted.
        """
        name, state = job.name, self._state
        for _ in range(round(HEALTH_S / LOOK_EVERY_S)):
            await asyncio.sleep(LOOK_EVERY_S)
            now = state.jobs.get(name)
            if now is None or now.epoch != job.epoch or now.state != "starting":
                return
            loss = self._lost(now, failure)
            if loss.dead and self._swaps.lose(name, loss, stopped=True):
                return
        loss = replace(await self._unanswered(job), failed_at=self._ended_at(job))
        if not self._still(job) or (loss.dead and self._swaps.lose(name, loss, stopped=True)):
            return
        state.jobs.change(name, failure=failure)
        self._ender.later(name, "failed", often)

    async def lost_at_start(self, name: str) -> bool:
        """Recover a job that did not start since it lost hardware meanwhile.

        Waits as long as silence must last. Return whether it was so, and the job goes on.
        """
        job = self._state.jobs.get(name)
        if job is None or not self._still(job):
            return False
        loss = self._lost(job, None)
        if not loss.dead:
            loss = await self._unanswered(job)
        return (
            bool(loss.dead)
            and self._swaps.takes(job)
            and self._still(job)
            and self._swaps.lose(name, loss, stopped=True)
        )

    def unresumed(self, name: str, reason: str) -> None:
        """Recover a job that its regroup could not resume since it lost hardware; or end it."""
        job = self._state.jobs.get(name)
        if job is None or not self._swaps.takes(job):
            self._ender.later(name, "failed", reason)
            return
        self._tasks.spawn(self._recover(job, reason), f"recover {name}")

    async def _recover(self, job: JobRecord, reason: str) -> None:
        """Hand over what is lost once the regroup is over; end the job if nothing is."""
        name, state = job.name, self._state

        def same() -> JobRecord | None:
            now = state.jobs.get(name)
            going = now is not None and now.submitted_at == job.submitted_at and now.holding
            return now if going and not self._ender.is_ending(name) else None

        for _ in range(round(REGROUP_S / LOOK_EVERY_S)):
            if state.transactions.of_job(name) is None:
                break
            await asyncio.sleep(LOOK_EVERY_S)
        if (now := same()) is None:
            return
        loss = self._lost(now, None)
        if not loss.dead:
            loss = await self._unanswered(now)
        if (now := same()) is None:
            return
        stopped = now.state == "starting"
        if not loss.dead or not self._swaps.lose(name, loss, stopped=stopped):
            self._ender.later(name, "failed", reason)

    async def _waited(self, job: JobRecord, failure: Failure | None, wait_s: float) -> None:
        """Wait before a job starts again; lost hardware that becomes known ends the wait.

        A rank ends by itself when it loses its peer, before that peer's agent has spoken.
        """
        if not self._swaps.takes(job):
            await asyncio.sleep(wait_s)
            return
        for _ in range(round(max(wait_s, HEALTH_S) / LOOK_EVERY_S)):
            await asyncio.sleep(LOOK_EVERY_S)
            if self._lost(job, failure).dead:
                return

    def _still(self, job: JobRecord) -> bool:
        """Whether this run waits to be started again; its name may belong to another job now."""
        now = self._state.jobs.get(job.name)
        same = now is not None and now.state == "starting" and now.epoch == job.epoch
        return same and not self._ender.is_ending(job.name)

    async def _unanswered(self, job: JobRecord) -> JobLoss:
        """Wait for the servers of a run that died; return what is on those that stay silent.

        A rank whose peer's server is lost ends by itself, before that loss is known.
        """
        state = self._state
        placed = {e: state.cables[e].server for e in state.cabled(job)}
        for _ in range(round(state.site.recovery.lost_after_s / LOOK_EVERY_S)):
            answering = state.connections.servers()
            if all(answering.get(server, False) for server in placed.values()):
                break
            await asyncio.sleep(LOOK_EVERY_S)
        answering = state.connections.servers()
        silent = {e: server for e, server in placed.items() if not answering.get(server, False)}
        return JobLoss(
            cause="server",
            objects=tuple(sorted({f"server/{server}" for server in silent.values()})),
            dead={e: f"server {server} does not answer" for e, server in silent.items()},
            failed_at=state.clock(),
        )

    def _lost(self, job: JobRecord, failure: Failure | None) -> JobLoss:
        """Return which of a job's endpoints are out of use; ``dead`` is empty when none is."""
        light = self._state.light
        dead = {e: light.unfit[e] for e in job.endpoints if e in light.unfit}
        dead |= {e: light.quarantine[e].reason for e in job.endpoints if e in light.quarantine}
        if failure is not None and failure.exit_code is None and surely_lost(failure.fault):
            dead.setdefault(failure.endpoint, failure.cause)
        return JobLoss(
            cause="endpoint",
            objects=tuple(f"endpoint/{e}" for e in dead),
            dead=dead,
            failed_at=self._ended_at(job),
        )

    def _own(self, job: JobRecord, failure: Failure) -> JobLoss:
        objects = (f"endpoint/{failure.endpoint}",)
        at = self._ended_at(job)
        return JobLoss(cause="program", objects=objects, dead={}, failed_at=at)

    def _ended_at(self, job: JobRecord) -> float:
        """Return when the first rank of the run ended, as its server reports; now if none did."""
        ends = [
            s.finished_at
            for s in self._state.jobs.statuses
            if s.job == job.name and s.epoch == job.epoch and s.finished_at is not None
        ]
        return min(ends, default=self._state.clock())

    def _started(self, job: JobRecord, *, queued: str) -> None:
        """Note in its row that the job runs again, or why it went back to the queue."""
        row = self._state.recoveries.under_way(job.name, job.submitted_at)
        now = self._state.jobs.get(job.name)
        if row is None or now is None:
            return
        if queued and not now.ended:
            self._state.recoveries.change(row.id, how="queue", why=queued, stage="started")
            self._state.journal.owe(*self._rows.writes(row.id))
            return
        if now.state != "running":
            return
        for name in ("decided", "stopped", "lit", "fetched"):
            if name not in row.marks:
                self._rows.mark(row.id, name)
        self._rows.mark(row.id, "started")
        self._state.recoveries.change(row.id, stage="started")
        self._state.journal.owe(*self._rows.writes(row.id))

    def _report(self, job: JobRecord, failure: Failure | None, again: str) -> None:
        """Record why the job starts again, once the first cause is known."""
        now = self._state.jobs.get(job.name)
        if failure is None or now is None or now.epoch != job.epoch or now.state != "starting":
            return
        text = f"{failure.cause}; {again}"
        self._state.jobs.change(job.name, reason=text, failure=failure)
        self._state.events.add("warning", f"job/{job.name}", "JobRestarting", text)
