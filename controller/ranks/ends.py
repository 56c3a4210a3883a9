"""Ends jobs: stops their containers, releases their endpoints and records why."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import structlog

from controller.base import failpoints
from controller.base.errors import ServiceError
from controller.base.tasks import Tasks
from controller.devices.aggregators import Aggregators
from controller.devices.engine import ExecutionEngine, RankStatus
from controller.devices.errors import DEVICE_ERRORS
from controller.ranks.diagnosis import Diagnosis
from controller.schema.base import JobState, Severity
from controller.state.intend import keys
from controller.state.intend.intentions import Make, constant
from controller.state.kept.kinds import row_of
from controller.state.records import Failure, JobRecord, Notice
from controller.state.state import State
from controller.state.writes import PutUsage

log = structlog.get_logger(__name__)

STOP_GRACE_S = 5.0
STOP_TIMEOUT_S = 40.0
WRITE_AGAIN_S = 1.0
"""Between two attempts to make an end durable."""

_REASONS: dict[JobState, str] = {
    "completed": "JobCompleted",
    "failed": "JobFailed",
    "cancelled": "JobCancelled",
}


@dataclass(slots=True)
class _Ending:
    """A job that is ending. Several callers may wait for it."""

    state: JobState
    reason: str
    grace_s: float
    ranks_failed: bool
    """Whether its ranks are to blame when its state is ``failed``."""
    tried: asyncio.Future[ServiceError | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Set once the end was handed to the store: why it is not durable yet, or None."""


_STOPPING = ServiceError("unavailable", "the controller is stopping")


class JobEnder:
    """Ends each job once. An end becomes visible when it is durable, not before."""

    def __init__(
        self, state: State, aggregators: Aggregators, engine: ExecutionEngine, tasks: Tasks
    ) -> None:
        self._state = state
        self._aggregators = aggregators
        self._engine = engine
        self._tasks = tasks
        self._diagnosis = Diagnosis(state, engine)
        self._ending: dict[str, _Ending] = {}

    def is_ending(self, name: str) -> bool:
        """Whether the job is ending."""
        return name in self._ending

    def doing(self, name: str) -> str:
        """Return what is being done with a job that must not move meanwhile; empty for nothing."""
        if name in self._ending:
            return "is ending"
        handled = self._state.jobs.handled.get(name)
        return "" if handled is None else handled.doing

    def later(
        self,
        name: str,
        state: JobState,
        reason: str,
        *,
        grace_s: float = STOP_GRACE_S,
        ranks_failed: bool = True,
    ) -> None:
        """Begin to end a job; the first reason counts.

        Its ranks have ``grace_s`` seconds between SIGTERM and SIGKILL. ``ranks_failed`` False: none
        of them is to blame.
        """
        self._begun(name, _Ending(state, reason, grace_s, ranks_failed))

    async def end(self, name: str, state: JobState, reason: str) -> ServiceError | None:
        """Stop the containers, then record the end and release the endpoints.

        Joins an end that is under way. Returns why the end is not durable yet: for a job that held
        endpoints it is written as soon as the store accepts it, and a job that only waited
        continues to wait.
        """
        ending = self._begun(name, _Ending(state, reason, STOP_GRACE_S, ranks_failed=True))
        return await asyncio.shield(ending.tried)

    def _begun(self, name: str, ending: _Ending) -> _Ending:
        if name in self._ending:
            ending = self._ending[name]
        else:
            self._ending[name] = ending
            self._tasks.spawn(self._end(name, ending), f"end {name}")
        return ending

    async def _end(self, name: str, ending: _Ending) -> None:
        reason = ending.reason
        try:
            job = self._state.jobs[name]
            stopped, problem, failure = job.holding, "", None
            if stopped and ending.state == "failed" and ending.ranks_failed:
                problem, failure = await self.stop_failed(job)
            elif stopped:
                all_runs = ending.state == "cancelled"
                problem = await self.stop(job, grace_s=ending.grace_s, all_runs=all_runs)
            if problem:  # what may live there keeps its endpoint after the end, too
                self._state.drains.leave(name, job.epoch, job.endpoints)
            cause = failure.cause if failure else ""
            reason = "; ".join(text for text in (cause, reason, problem) if text)
            self._state.next_epoch()
            ended = self._end_of(self._state.jobs[name], ending.state, reason, failure)
            while error := await self._refusal(name, ended):
                if not ending.tried.done():
                    ending.tried.set_result(error)
                if not stopped:
                    return
                self._state.jobs.change(name, reason=f"its end is not written yet: {error.message}")
                await asyncio.sleep(WRITE_AGAIN_S)
            surplus = self._state.outbox.trim()
            if not ending.tried.done():
                ending.tried.set_result(None)
        finally:
            del self._ending[name]  # from here on the name may belong to another job
            if not ending.tried.done():
                ending.tried.set_result(_STOPPING)
        severity: Severity = "error" if ending.state == "failed" else "info"
        text = reason or "all ranks exited with code 0"
        self._state.events.add(severity, f"job/{name}", _REASONS[ending.state], text)
        self._state.journal.owe(*map(keys.job, self._state.jobs.forget_ended()))
        self._give_up(surplus)
        try:
            async with failpoints.around("flows"):
                self._state.require_command()
                await self._aggregators.converge(self._state.forwarding())
        except ServiceError as error:  # the drift watch converges the aggregators again
            log.error("flows_of_an_ended_job_stay", job=name, error=error.message)
        finally:
            self._state.jobs.wake.set()

    def _give_up(self, surplus: Sequence[Notice]) -> None:
        """Record that notices of earlier ends make room for new ones."""
        for notice in surplus:
            text = "the notice of its end is given up: too many others wait"
            self._state.events.add("error", f"job/{notice.job}", "NoticeLost", text)
            self._state.journal.owe(row_of(notice))

    async def _refusal(self, name: str, ended: Make) -> ServiceError | None:
        """Make an end durable with its notices; return why that did not succeed."""
        state = self._state
        try:
            notices = state.outbox.of(ended(state.jobs.get(name)))
            await state.intend(
                {keys.job(name): ended, **{row_of(one): constant(one) for one in notices}},
                keys.FACTS,
                PutUsage(state.usage.closing(name)),
                point="save-job",
            )
        except ServiceError as error:
            log.error("end_not_durable", job=name, error=error.message)
            return error
        return None

    async def stop(
        self,
        job: JobRecord,
        *,
        report: bool = True,
        grace_s: float = STOP_GRACE_S,
        all_runs: bool = False,
        servers: Collection[str] | None = None,
    ) -> str:
        """Stop a job's containers; return what went wrong. ``report`` also records an event.

        The ranks have ``grace_s`` seconds to end by themselves. With ``all_runs`` those of runs
        that this store does not know are stopped as well; with ``servers`` those there only.
        """
        until = None if all_runs else job.epoch
        stopping = self._stop(job, report=report, grace_s=grace_s, until=until, servers=servers)
        problem, _ = await stopping
        return problem

    async def stop_failed(self, job: JobRecord) -> tuple[str, Failure | None]:
        """Stop the containers of a job that failed; return what went wrong, and why it failed.

        What is known of the failure is durable before the containers are removed.
        """
        before = self._diagnosis.before(job)
        if job.failure is not None and job.failure.epoch == job.epoch:
            await self.keep(job.name)
        problem, stopped = await self._stop(job, report=True, until=job.epoch)
        return problem, await self._diagnosis.failure(job, before, stopped)

    async def _stop(
        self,
        job: JobRecord,
        *,
        report: bool,
        until: int | None,
        grace_s: float = STOP_GRACE_S,
        servers: Collection[str] | None = None,
    ) -> tuple[str, list[RankStatus]]:
        """Stop a job's containers; return what went wrong, and how they ended."""
        limit_s = STOP_TIMEOUT_S + max(0.0, grace_s - STOP_GRACE_S)
        try:
            async with failpoints.around("stop"), asyncio.timeout(limit_s):
                where = () if servers is None else (servers,)
                return "", await self._engine.stop(job.name, grace_s, *where, until=until)
        except DEVICE_ERRORS as error:
            text = f"not every container stopped: {str(error) or 'time-out'}"
            if report:
                self._state.events.add("error", f"job/{job.name}", "NotStopped", text)
            return text, []

    async def save(self, name: str, made: Make) -> None:
        """Change a job's record at once, and make that durable with the epoch, or undo it.

        ServiceError, also of ``made``.
        """
        await self._state.intend({keys.job(name): made}, keys.FACTS, visible=True, point="save-job")

    async def keep(self, name: str) -> None:
        """Make a job's present record durable; it stays owed when the store refuses."""
        try:
            async with failpoints.around("save-job"):
                await self._state.record(keys.job(name), keys.FACTS)
        except ServiceError as error:
            log.error("job_not_durable_yet", job=name, error=error.message)

    def _end_of(
        self, job: JobRecord, state: JobState, reason: str, failure: Failure | None
    ) -> Make:
        """Return what makes a job's record that of its end."""
        finished = [
            s.finished_at
            for s in self._state.jobs.statuses
            if s.job == job.name and s.epoch == job.epoch and s.finished_at is not None
        ]
        at = max(finished) if state == "completed" and finished else self._state.clock()
        homes = self._state.light.homes()

        def ended(now: JobRecord | None) -> JobRecord:
            if now is None or now.submitted_at != job.submitted_at:
                raise ServiceError(
                    "not_found", f"job {job.name} does not exist any more", object=f"job/{job.name}"
                )
            return replace(
                now,
                state=state,
                reason=reason,
                finished_at=at,
                final_homes=tuple(homes.get(e) for e in now.endpoints),
                spares=(),
                failure=(failure or now.failure) if state == "failed" else None,
            )

        return ended
