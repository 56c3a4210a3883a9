"""What a restarted controller does with the jobs that its predecessor left half-way.

An agent may be late, or away, just now: what nobody has confirmed is neither taken for done nor
for failed, but asked for again. Until then the job keeps its endpoints.
"""

from __future__ import annotations

import asyncio

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
from controller.state.state import State
from scheduler.model import Policy

log = structlog.get_logger(__name__)

AGAIN_S = 2.0
"""Between two attempts to stop what was starting."""
LATE = ("unavailable", "timeout")
"""Codes of calls that nobody answered: whether they were carried out is not known."""
REASON = "the controller restarted while it was starting"


class JobRecovery:
    """Brings the jobs back to where the intent has them."""

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
    ) -> None:
        self._state = state
        self._mover = mover
        self._starter = starter
        self._engine = engine
        self._jobs = jobs
        self._ender = ender
        self._tasks = tasks
        self._told: set[str] = set()
        """Jobs that wait for agents, as people know."""

    def begin(self) -> None:
        """Containers that run go on; half-started jobs queue again, once they are stopped."""
        for job in self._state.jobs.values():
            if job.holding:
                cables = [self._state.cables.get(e) for e in job.endpoints]  # of the site as it is
                self._engine.placed(job.name, {cable.server for cable in cables if cable})
            if job.state == "starting":
                self._tasks.spawn(self._start_over(job.name, job.epoch), f"start over {job.name}")

    async def _start_over(self, name: str, epoch: int) -> None:
        """Stop what there is of a half-started job, then let it wait again."""
        tell = True
        while self._starts_still(name, epoch):
            problem = await self._ender.stop(self._state.jobs[name], tell=tell)
            if not self._starts_still(name, epoch):
                return  # cancelled meanwhile
            if not problem:
                await self._jobs.back_to_queue(name, REASON)
                return
            self._state.change(name, reason=f"{REASON}; {problem}")
            tell = False
            await asyncio.sleep(AGAIN_S)

    def _starts_still(self, name: str, epoch: int) -> bool:
        job = self._state.jobs.get(name)
        mine = job is not None and job.state == "starting" and job.epoch == epoch
        return mine and not self._ender.is_ending(name)

    async def wake_up(self, name: str, since: int) -> bool:
        """Let a job go on that a transaction begun at epoch ``since`` left frozen or stopped.

        A job that restarts is stopped first: its ranks may have been told to end, and may be on
        their way. One that was restarted already has a later epoch. False when agents do not
        answer: then it is to be tried again.
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
                    await calls.thaw(self._engine, name)
        except ServiceError as error:
            if error.code in LATE and self._state.jobs[name].state == "running":
                self._tell(name, error.message)
                return False
            self._ender.later(name, "failed", f"did not resume after a restart: {error.message}")
        self._told.discard(name)
        return True

    async def _stop(self, name: str, grace_s: float) -> None:
        try:
            await self._engine.stop(name, grace_s)
        except EngineError as error:
            raise calls.refusal(name, error) from error

    def _tell(self, name: str, why: str) -> None:
        if name not in self._told:
            self._told.add(name)
            text = f"it goes on as soon as its agents answer: {why}"
            self._state.events.add("warning", f"job/{name}", "WaitsForAgents", text)
