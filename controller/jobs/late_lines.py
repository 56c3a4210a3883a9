"""Reads the last lines of failed jobs whose server did not answer when they ended."""

from __future__ import annotations

from dataclasses import replace

from controller.base.tasks import Tasks
from controller.devices.engine import ExecutionEngine
from controller.ranks.calls import placed
from controller.ranks.diagnosis import Diagnosis
from controller.ranks.ends import JobEnder
from controller.state.records import JobRecord
from controller.state.state import State


class LateLines:
    """Tries each job once while its server answers, and again after it was away."""

    def __init__(
        self, state: State, engine: ExecutionEngine, ender: JobEnder, tasks: Tasks
    ) -> None:
        self._state = state
        self._engine = engine
        self._ender = ender
        self._tasks = tasks
        self._diagnosis = Diagnosis(state, engine)
        self._tried: set[str] = set()
        self._reading = ""

    def read_next(self) -> None:
        """Begin to read for one job, if there is one; call after each observation."""
        answering = self._engine.reachable()
        self._tried &= self._state.jobs.keys()
        for job in self._state.jobs.values():
            if not job.ended or job.failure is None or not job.failure.unread:
                continue
            if not answering.get(placed(self._state, job).get(job.failure.rank, ""), False):
                self._tried.discard(job.name)
            elif job.name not in self._tried and not self._reading:
                self._tried.add(job.name)
                self._reading = job.name
                self._tasks.spawn(self._read(job), f"last lines of {job.name}")

    async def _read(self, job: JobRecord) -> None:
        try:
            if job.failure is None:
                return
            lines, unread = await self._diagnosis.lines(job, job.failure.rank)
            if unread or self._state.jobs.get(job.name) is not job:
                return
            failure = replace(job.failure, lines=lines, unread="")
            self._state.jobs.change(job.name, failure=failure)
            await self._ender.keep(job.name)
        finally:
            self._reading = ""
