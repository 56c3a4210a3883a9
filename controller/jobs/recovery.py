"""Recovers the jobs that the previous controller process left half-started or frozen.

An agent may be slow or unreachable: a call without an answer counts neither as done nor as failed
and is repeated. Until an answer arrives the job keeps its endpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from controller.base.errors import ServiceError
from controller.base.tasks import Tasks
from controller.devices.engine import EngineError, ExecutionEngine
from controller.fabric.executor import RESTART_GRACE_S
from controller.fabric.mover import Mover
from controller.jobs.keeper import JobKeeper
from controller.ranks import calls
from controller.ranks.ends import JobEnder
from controller.ranks.starter import RankStarter
from controller.state.records import JobRecord
from controller.state.state import State
from scheduler.model import Policy

log = structlog.get_logger(__name__)

RETRY_S = 2.0
"""Time between two attempts to stop a half-started job."""
REASON = "the controller restarted while it was starting"


class JobRecovery:
    """Brings the jobs' containers back in line with the intent."""

    def __init__(
        self,
        state: State,
        engine: ExecutionEngine,
        *,
        mover: Mover,
        starter: RankStarter,
        jobs: JobKeeper,
        ender: JobEnder,
        tasks: Tasks,
        lost_at_start: Callable[[str], Awaitable[bool]],
    ) -> None:
        """``lost_at_start`` takes over a job that did not start since it lost hardware."""
        self._state = state
        self._mover = mover
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
            if job.state == "starting" and job.ours and not self._recovered(job):
                self._tasks.spawn(self._start_over(job.name, job.epoch), f"start over {job.name}")

    def _recovered(self, job: JobRecord) -> bool:
        """Whether another part goes on with a job that had lost hardware."""
        row = self._state.recoveries.under_way(job.name, job.submitted_at)
        return row is not None and row.cause != "program" and row.how != "queue"

    async def _start_over(self, name: str, epoch: int) -> None:
        """Stop the containers of a half-started job, then put it back into the queue.

        One that lost a server meanwhile is recovered as after any loss: the server may never
        answer again. Agents have the first attempt to connect.
        """
        tell = True
        while self._still_starting(name, epoch):
            problem = await self._ender.stop(self._state.jobs[name], tell=tell)
            if not self._still_starting(name, epoch):
                return  # cancelled meanwhile
            if not problem:
                await self._jobs.back_to_queue(name, REASON)
                return
            self._state.jobs.change(name, reason=f"{REASON}; {problem}")
            if not tell and await self._lost_at_start(name):
                return
            tell = False
            await asyncio.sleep(RETRY_S)

    def _still_starting(self, name: str, epoch: int) -> bool:
        job = self._state.jobs.get(name)
        same = job is not None and job.state == "starting" and job.epoch == epoch
        return same and not self._ender.is_ending(name)

    async def wake_up(self, name: str, since: int) -> bool:
        """Resume a job that a transaction begun at epoch ``since`` left frozen or stopped.

        A job with policy ``restart`` is stopped first, because its ranks may be terminating; one
        that was restarted already has a later epoch. False when agents do not answer: the caller
        tries again.
        """
        job = self._state.jobs.get(name)
        if job is None or job.state != "running":
            return True
        if self._mover.doing(name):
            return False
        try:
            with self._jobs.alone(name, "is being recovered"):
                if Policy(job.request.policy) is Policy.RESTART and job.epoch <= since:
                    await self._stop(name, job.request.checkpoint_grace_s or RESTART_GRACE_S)
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

    async def _stop(self, name: str, grace_s: float) -> None:
        try:
            await self._engine.stop(name, grace_s)
        except EngineError as error:
            raise calls.refusal(name, error) from error

    def _report(self, name: str, why: str) -> None:
        if name not in self._reported:
            self._reported.add(name)
            text = f"it resumes as soon as its agents answer: {why}"
            self._state.events.add("warning", f"job/{name}", "WaitsForAgents", text)
