"""How jobs end: stop what still runs, give the endpoints back, say why."""

from __future__ import annotations

import asyncio

import structlog

from controller import failpoints
from controller.engine import ExecutionEngine
from controller.errors import ServiceError
from controller.executor import DEVICE_ERRORS
from controller.records import JobRecord
from controller.service_fabric import FabricKeeper
from controller.state import State
from controller.store import DropJobs, PutJob, Write
from controller.tasks import Tasks
from controller.views import JobState, Severity

log = structlog.get_logger(__name__)

STOP_GRACE_S = 5.0
STOP_TIMEOUT_S = 40.0

_WORDS: dict[JobState, str] = {
    "completed": "JobCompleted",
    "failed": "JobFailed",
    "cancelled": "JobCancelled",
}


class JobEnder:
    """Ends jobs, each of them once."""

    def __init__(
        self, state: State, fabric: FabricKeeper, engine: ExecutionEngine, tasks: Tasks
    ) -> None:
        self._state = state
        self._fabric = fabric
        self._engine = engine
        self._tasks = tasks
        self._ending: set[str] = set()

    def is_ending(self, name: str) -> bool:
        """Whether the job is on its way out."""
        return name in self._ending

    def later(self, name: str, state: JobState, reason: str) -> None:
        """Begin to end a job; the first reason stays."""
        if name not in self._ending:
            self._ending.add(name)
            self._tasks.spawn(self.end(name, state, reason), f"end {name}")

    async def end(self, name: str, state: JobState, reason: str) -> None:
        """Stop the containers, then record the end and give the endpoints back."""
        self._ending.add(name)
        try:
            job = self._state.jobs[name]
            if job.holding and (problem := await self.stop(job)):
                reason = f"{reason}; {problem}" if reason else problem
            if self._state.jobs[name].ended:
                return
            ended = self._finish(name, state, reason)
        finally:
            self._ending.discard(name)  # from here on somebody may give its name to another job
        try:
            await self._saved(ended, DropJobs(self._state.forget_ended()))
            async with failpoints.around("flows"):
                await self._fabric.install()
        except ServiceError as error:
            log.error("end_not_durable", job=name, error=error.message)
        finally:
            self._state.wake.set()

    async def stop(self, job: JobRecord, *, tell: bool = True) -> str:
        """Stop a job's containers; return what went wrong, in words. ``tell`` people of it."""
        try:
            async with failpoints.around("stop"), asyncio.timeout(STOP_TIMEOUT_S):
                await self._engine.stop(job.name, STOP_GRACE_S)
        except DEVICE_ERRORS as error:
            text = f"not every container stopped: {str(error) or 'time-out'}"
            if tell:
                self._state.events.add("error", f"job/{job.name}", "NotStopped", text)
            return text
        return ""

    async def save(self, name: str, *also: Write) -> None:
        """Make a job and the epoch durable, and what goes with them. ServiceError."""
        await self._saved(self._state.jobs[name], *also)

    async def _saved(self, job: JobRecord, *also: Write) -> None:
        async with failpoints.around("save-job"):
            await self._state.commit(PutJob(job), *also, self._state.facts())

    def _finish(self, name: str, state: JobState, reason: str) -> JobRecord:
        job = self._state.jobs[name]
        finished = [
            s.finished_at
            for s in self._state.statuses
            if s.job == name and s.epoch == job.epoch and s.finished_at is not None
        ]
        at = max(finished) if state == "completed" and finished else self._state.clock()
        homes = self._state.homes()
        ended = self._state.change(
            name,
            state=state,
            reason=reason,
            finished_at=at,
            final_homes=tuple(homes.get(e) for e in job.endpoints),
        )
        self._state.epoch += 1
        severity: Severity = "error" if state == "failed" else "info"
        text = reason or "all ranks exited with code 0"
        self._state.events.add(severity, f"job/{name}", _WORDS[state], text)
        return ended
