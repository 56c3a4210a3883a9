"""Recovers the jobs that the previous controller process left half-started or frozen.

An agent may be slow or unreachable: a call without an answer counts neither as done nor as failed
and is repeated. Until an answer arrives the job keeps its endpoints.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from controller.base.errors import ServiceError
from controller.base.tasks import Tasks
from controller.devices.engine import EngineError, ExecutionEngine
from controller.fabric.executor import RESTART_GRACE_S
from controller.jobs.keeper import JobKeeper
from controller.ranks import calls
from controller.ranks.ends import JobEnder
from controller.ranks.starter import RankStarter
from controller.state.records import JobRecord
from controller.state.state import State
from scheduler.model import Policy

log = structlog.get_logger(__name__)

REASON = "the controller restarted while it was starting"


class JobRecovery:
    """Brings the jobs' containers back in line with the intent."""

    def __init__(
        self,
        state: State,
        engine: ExecutionEngine,
        *,
        starter: RankStarter,
        jobs: JobKeeper,
        ender: JobEnder,
        tasks: Tasks,
        lost_at_start: Callable[[str], Awaitable[bool]],
    ) -> None:
        """``lost_at_start`` takes over a job that did not start since it lost hardware."""
        self._state = state
        self._starter = starter
        self._engine = engine
        self._jobs = jobs
        self._ender = ender
        self._tasks = tasks
        self._lost_at_start = lost_at_start
        self._reported: set[str] = set()
        """Jobs that wait for agents, and whose event was emitted."""

    def begin(self) -> None:
        """Keep running containers; stop half-started jobs and put them back into the queue."""
        for job in self._state.jobs.values():
            if job.holding:
                cables = [
                    self._state.cables.get(e) for e in job.endpoints
                ]  # None: left the site file
                self._engine.placed(job.name, {cable.server for cable in cables if cable})
            if job.state == "starting" and job.owner.starts and not self._recovered(job):
                self._tasks.spawn(self._start_over(job), f"start over {job.name}")

    def _recovered(self, job: JobRecord) -> bool:
        """Whether another part goes on with a job that had lost hardware."""
        row = self._state.recoveries.under_way(job.name, job.submitted_at)
        return row is not None and row.cause != "program" and row.how != "queue"

    async def _start_over(self, job: JobRecord) -> None:
        """Put a half-started job back into the queue once nothing of it is left."""
        await self._jobs.stop_and_queue(job.name, job.epoch, REASON)

    async def wake_up(self, name: str, since: int) -> bool:
        """Resume a job that a transaction begun at epoch ``since`` left frozen or stopped.

        A job with policy ``restart`` is stopped first, because its ranks may be terminating; one
        that was restarted already has a later epoch. False when agents do not answer: the caller
        tries again.
        """
        job = self._state.jobs.get(name)
        if job is None or job.state != "running":
            return True
        if self._ender.doing(name):
            return False
        try:
            with self._jobs.alone(name, "is being recovered"):
                if Policy(job.request.policy) is Policy.RESTART and job.epoch <= since:
                    await self._stop(job, job.request.checkpoint_grace_s or RESTART_GRACE_S)
                    await self._starter.restart(name)
                else:
                    await calls.thaw(self._engine, self._state, job)
        except ServiceError as error:
            if error.code in calls.UNANSWERED and self._state.jobs[name].state == "running":
                self._report(name, error.message)
                return False
            if not await self._lost_at_start(name):
                text = f"did not resume after a restart: {error.message}"
                self._ender.later(name, "failed", text)
        self._reported.discard(name)
        return True

    async def _stop(self, job: JobRecord, grace_s: float) -> None:
        try:
            await self._engine.stop(job.name, grace_s, until=job.epoch)
        except EngineError as error:
            raise calls.refusal(job.name, error) from error

    def _report(self, name: str, why: str) -> None:
        if name not in self._reported:
            self._reported.add(name)
            text = f"it resumes as soon as its agents answer: {why}"
            self._state.events.add("warning", f"job/{name}", "WaitsForAgents", text)
