"""Keeps the records of another engine's jobs equal to what that engine says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from controller.base.errors import ServiceError
from controller.base.tasks import Tasks
from controller.base.texts import clipped
from controller.devices.engine import ExecutionEngine
from controller.devices.observed import EngineJob, JobChanges, ObservedEngine, Turn
from controller.fabric.intent import FabricIntent
from controller.observed.fold import EngineRules, FoldContext, fold, gone, name_of
from controller.ranks import calls
from controller.schema.base import Severity
from controller.state.intend import keys
from controller.state.records import JobRecord
from controller.state.state import State

log = structlog.get_logger(__name__)

SLICE = 200
"""Jobs of one batch that are taken over before other tasks get their turn on the event loop."""
MOST_JOBS = 20_000
"""Jobs of the engine that are watched; those that wait longest in its queue are left out."""

_EVENTS = {
    "starting": "JobAllocated",
    "running": "JobStarted",
    "completed": "JobCompleted",
    "failed": "JobFailed",
    "cancelled": "JobCancelled",
}


class ObservedKeeper:
    """Takes over what an engine says of its jobs; never acts on a job itself."""

    def __init__(
        self,
        state: State,
        observed: ObservedEngine,
        engine: ExecutionEngine,
        rules: EngineRules,
        *,
        intent: FabricIntent,
        tasks: Tasks,
        changed: Callable[[], None],
    ) -> None:
        """``changed`` is called when jobs got or left endpoints or the queue changed."""
        self._state = state
        self._observed = observed
        self._engine = engine
        self._rules = rules
        self._intent = intent
        self._tasks = tasks
        self._changed = changed
        self._latest: dict[str, EngineJob] = {}
        """By key: what the engine last said of every job that has not ended."""
        self._taking = asyncio.Lock()
        self._late: set[str] = set()
        """Keys of jobs whose news wait for the end of a transaction."""
        self.left_out = 0
        """Jobs beyond ``MOST_JOBS``."""

    async def run(self) -> None:
        """Take over what the engine says, until cancelled."""
        async for batch in self._observed.changes():
            await self.apply(batch)

    async def apply(self, batch: JobChanges) -> None:
        """Take over one batch."""
        async with self._taking:
            news = self._bounded(batch)
            known = {one.key for one in news} if batch.complete else set()
            for one in news:
                if one.turn is Turn.ENDED:
                    self._latest.pop(one.key, None)
                else:
                    self._latest[one.key] = one
            if batch.complete:
                for key in self._latest.keys() - known:
                    del self._latest[key]
            # Ends first: endpoints become free before other jobs get them.
            news.sort(key=lambda one: one.turn is not Turn.ENDED)
            put: list[JobRecord] = []
            for at in range(0, len(news), SLICE):
                put += self._fold(news[at : at + SLICE], whole=batch.complete)
                await asyncio.sleep(0)
            if batch.complete:
                put += self._gone(known)
            if any(record.ended for record in put):
                put += self._fold(self._sharing())
            await self._converge(put)

    def attempt_of(self, key: str) -> int | None:
        """Return which attempt of a job the engine last told of; None for an unknown job."""
        seen = self._latest.get(key)
        return None if seen is None else seen.attempt

    def _bounded(self, batch: JobChanges) -> list[EngineJob]:
        """Return what is watched of a batch: all that hold endpoints, then the queue's first."""
        news = list(batch.seen)
        fresh = [one for one in news if one.key not in self._latest and one.turn is Turn.WAITS]
        held = 0 if batch.complete else len(self._latest)
        room = MOST_JOBS - held - (len(news) - len(fresh))
        self.left_out = max(0, len(fresh) - max(0, room))
        if not self.left_out:
            return news
        fresh.sort(key=lambda one: one.ahead)
        away = {one.key for one in fresh[max(0, room) :]}
        return [one for one in news if one.key not in away]

    def _moment(self) -> FoldContext:
        state = self._state
        holders = state.jobs.holders()
        return FoldContext(
            now=state.clock(),
            epoch=state.epoch + 1,
            homes=state.light.homes(),
            holder=lambda e: holders[e].name if e in holders else None,
        )

    def _fold(self, news: Iterable[EngineJob], *, whole: bool = False) -> list[JobRecord]:
        """Put the records that differ; return them."""
        free = [one for one in news if not self._is_moving(one)]
        put = fold(self._state.jobs, free, self._rules, self._moment(), whole=whole)
        return [self._put(record) for record in put]

    def _is_moving(self, seen: EngineJob) -> bool:
        """Whether a transaction moves the job's light: its news are taken over at the end."""
        running = self._state.transactions.of_job(name_of(seen.key))
        if running is None:
            return False
        if seen.key not in self._late:
            self._late.add(seen.key)
            self._tasks.spawn(self._later(seen, running.ended), f"news of {seen.key}")
        return True

    async def _later(self, seen: EngineJob, ended: asyncio.Event) -> None:
        await ended.wait()
        self._late.discard(seen.key)
        latest = self._latest.get(seen.key)
        if latest is None and seen.turn is not Turn.ENDED:
            try:
                latest = await self._observed.read_job(seen.key)
            except Exception as error:
                log.warning("job_not_looked_up", job=seen.key, error=str(error))
        await self.apply(JobChanges((latest or seen,), complete=False))

    def _gone(self, known: set[str]) -> list[JobRecord]:
        """End the jobs that the engine has forgotten."""
        moment = self._moment()
        lost = [
            job
            for job in self._state.jobs.values()
            if job.observed is not None
            and job.observed.engine == self._rules.engine
            and not job.ended
            and job.observed.key not in known
            and self._state.transactions.of_job(job.name) is None
        ]
        return [self._put(gone(job, moment)) for job in lost]

    def _sharing(self) -> list[EngineJob]:
        """Return the jobs that count on fewer endpoints than they run on."""
        return [
            seen
            for key, seen in self._latest.items()
            if seen.turn in (Turn.ALLOCATED, Turn.RUNNING)
            and (
                (job := self._state.jobs.get(name_of(key))) is None
                or len(job.endpoints) < len(seen.endpoints)
            )
        ]

    def _put(self, record: JobRecord) -> JobRecord:
        state = self._state
        before = state.jobs.get(record.name)
        state.jobs.put(record)
        if record.holding or (record.ended and before is not None and before.holding):
            state.journal.owe(keys.job(record.name))
        if record.holding:
            self._engine.placed(record.name, set(calls.placed(state, record).values()))
        if before is None or before.state != record.state:
            self._add_event(before, record)
        return record

    def _add_event(self, before: JobRecord | None, record: JobRecord) -> None:
        reason = _EVENTS.get(record.state)
        held = record.holding or (before is not None and before.holding)
        if reason is None or not held or (before is not None and before.state == "paused"):
            return
        told = record.observed
        whose = f"{told.engine} job {told.number}" if told else ""
        title = f" ({clipped(told.title)})" if told and told.title else ""
        on = f" on {', '.join(record.endpoints)}" if record.holding else ""
        why = f": {record.reason}" if record.reason else ""
        severity: Severity = "error" if record.state == "failed" else "info"
        text = f"{whose}{title}{on}{why}"
        self._state.events.add(severity, f"job/{record.name}", reason, text)
        for problem in told.problems if told and record.holding else ():
            self._state.events.add("warning", f"job/{record.name}", "NotUnderstood", problem)

    async def _converge(self, put: list[JobRecord]) -> None:
        """Bring the rules to what the jobs hold now, and wake who waits for a change."""
        if not put:
            return
        state = self._state
        held = [record for record in put if record.holding or record.endpoints]
        if held:
            state.next_epoch()
            state.journal.owe(*map(keys.job, state.jobs.forget_ended()), keys.FACTS)
            try:
                await self._intent.converge()
            except ServiceError as error:  # the drift watch converges them again
                log.error("flows_not_converged", error=error.message)
        else:
            state.jobs.forget_ended()
        self._changed()
