"""Stops what given-up runs may have left where no stop was confirmed: on silent servers, or hung.

Nothing is placed on those endpoints meanwhile.
"""

from __future__ import annotations

import asyncio

import structlog

from controller.base.tasks import Tasks
from controller.devices.engine import EngineError, ExecutionEngine
from controller.state.intend import keys
from controller.state.kept.drains import Left
from controller.state.state import State
from controller.swaps.relight import Relighter

log = structlog.get_logger(__name__)

STOP_LIMIT_S = 40.0
SURE_ROUNDS = 2
"""Looks in a row in which a server answers and reports no container of the lost run."""


class LeftRuns:
    """Stops what runs left, as often as needed, and frees their endpoints when nothing is there."""

    def __init__(
        self, state: State, engine: ExecutionEngine, relighter: Relighter, tasks: Tasks
    ) -> None:
        self._state = state
        self._engine = engine
        self._relighter = relighter
        self._tasks = tasks
        self._under_way: asyncio.Task[None] | None = None
        self._clean: dict[Left, int] = {}
        """Looks in a row that found nothing."""

    def look(self) -> None:
        """Look once, after an observation of the containers; one cleaning at a time."""
        state, busy = self._state, self._under_way is not None and not self._under_way.done()
        if state.drains.left and not state.command_lost and not busy:
            self._under_way = self._tasks.spawn(self._clean_up(), "clean up lost runs")

    async def _clean_up(self) -> None:
        state = self._state
        answering = state.connections.servers()
        done: list[Left] = []
        found: list[Left] = []
        for entry in state.drains.left:
            if not answering.get(entry.server, False):
                self._clean.pop(entry, None)
            elif self._there(entry):
                self._clean[entry] = 0
                found.append(entry)
            else:
                self._clean[entry] = self._clean.get(entry, 0) + 1
                if self._clean[entry] >= SURE_ROUNDS:
                    done.append(entry)
        for entry in done:
            del self._clean[entry]
        await asyncio.gather(*map(self._stop, found))
        if done:
            state.drains.cleaned(done)
            self._relighter.want(name for entry in done for name in entry.endpoints)
            state.journal.owe(keys.FACTS)
            state.jobs.wake.set()

    def _there(self, entry: Left) -> bool:
        """Whether a container of the lost run is there; one that has ended has its log to keep."""
        return any(
            s.job == entry.job and s.server == entry.server and s.epoch <= entry.epoch
            for s in self._state.jobs.statuses
        )

    async def _stop(self, entry: Left) -> None:
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                await self._engine.stop(entry.job, 0.0, [entry.server], until=entry.epoch)
        except (EngineError, OSError, TimeoutError) as error:
            log.warning("left_run_not_stopped", job=entry.job, reason=str(error))
            return
        text = f"containers of a former run of job {entry.job} were stopped"
        self._state.events.add("info", f"server/{entry.server}", "LeftRunStopped", text)
