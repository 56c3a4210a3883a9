"""Handles the death of a rank or the loss of its GPU: the whole job ends, or starts again.

The ranks of a job work in step, so the others cannot continue without it. They are stopped, and
started again on the same endpoints; if one of these is out of use by then, the job goes back into
the queue and is placed again.
"""

from __future__ import annotations

import asyncio

import structlog

from controller.base.errors import ServiceError
from controller.base.tasks import Tasks
from controller.jobs.keeper import JobKeeper
from controller.jobs.restart_policy import RestartPolicy
from controller.ranks.ends import JobEnder
from controller.state.records import Failure, JobRecord
from controller.state.state import State

log = structlog.get_logger(__name__)

OUT_OF_USE = "back in the queue: one of its endpoints is out of use"


class JobRestarter:
    """Ends or restarts a job whose rank died, by its restart policy."""

    def __init__(
        self,
        state: State,
        ender: JobEnder,
        tasks: Tasks,
        jobs: JobKeeper,
    ) -> None:
        self._state = state
        self._ender = ender
        self._tasks = tasks
        self._jobs = jobs

    def rank_died(self, job: JobRecord, failure: Failure) -> None:
        """End the job, or begin to start it again if its policy allows another restart.

        A failure of this run that was noted earlier, before a restart of the controller, counts.
        """
        if job.failure is not None and job.failure.epoch == job.epoch:
            failure = job.failure
        failures = job.failures + 1
        policy = RestartPolicy.parse(job.request.restart)
        wait_s = policy.wait_s(failures)
        if wait_s is None:
            often = f"restarted {policy.times} times already" if policy.times else ""
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
        self._tasks.spawn(self._restart(job.name, job.epoch, wait_s, again), f"restart {job.name}")

    async def _restart(self, name: str, epoch: int, wait_s: float, again: str) -> None:
        try:
            failed = self._state.jobs[name]
            problem, failure = await self._ender.stop_failed(failed)
            self._tell(failed, failure or failed.failure, again)
            if not problem:
                await asyncio.sleep(wait_s)
            now = self._state.jobs.get(name)
            if now is None or now.epoch != epoch or now.state != "starting":
                return  # cancelled meanwhile; the name may belong to another job now
            if self._ender.is_ending(name):
                return
            unusable = self._state.light.quarantine.keys() | self._state.light.unfit.keys()
            if problem:
                await self._ender.end(name, "failed", problem)
            elif unusable & set(now.endpoints):
                await self._jobs.back_to_queue(name, OUT_OF_USE)
            else:
                await self._jobs.start_again(name)
        except ServiceError as error:
            await self._ender.end(name, "failed", f"did not start again: {error.message}")

    def _tell(self, job: JobRecord, failure: Failure | None, again: str) -> None:
        """Say why the job starts again, once the first cause is known."""
        now = self._state.jobs.get(job.name)
        if failure is None or now is None or now.epoch != job.epoch or now.state != "starting":
            return
        text = f"{failure.cause}; {again}"
        self._state.jobs.change(job.name, reason=text, failure=failure)
        self._state.events.add("warning", f"job/{job.name}", "JobRestarting", text)
