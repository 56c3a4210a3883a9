"""The keeper of jobs: everything from submit until a job runs, except whose turn it is."""

from __future__ import annotations

import asyncio

import structlog

from controller import failpoints
from controller.engine import EngineError, ExecutionEngine
from controller.errors import ErrorCode, ServiceError
from controller.executor import DEVICE_ERRORS
from controller.records import JobRecord
from controller.service_admission import check_possible, check_project, rank_specs
from controller.service_ends import JobEnder
from controller.service_fabric import FabricKeeper
from controller.state import Running, State
from controller.store import PutJob
from controller.tasks import Tasks
from controller.transaction_model import (
    Cause,
    Outcome,
)
from controller.views import JobRequest, JobState
from scheduler import ring
from scheduler.model import Placement, RankOrder

log = structlog.get_logger(__name__)

START_TIMEOUT_S = 60.0
FREEZE_TIMEOUT_S = 10.0
SETTLE_TIMEOUT_S = 120.0
PLACEMENT_ATTEMPTS = 3


class JobKeeper:
    """Owns every job's life between submit and its end."""

    def __init__(
        self,
        state: State,
        fabric: FabricKeeper,
        engine: ExecutionEngine,
        ender: JobEnder,
        tasks: Tasks,
        *,
        default_image: str,
    ) -> None:
        self._state = state
        self._fabric = fabric
        self._engine = engine
        self._ender = ender
        self._tasks = tasks
        self._default_image = default_image
        self._attempts: dict[str, int] = {}
        self._launches: dict[str, asyncio.Task[None]] = {}

    # --- operations -----------------------------------------------------------------------

    async def submit(self, request: JobRequest) -> JobRecord:
        """Queue a job. ServiceError ``invalid`` when it can never run, ``conflict`` on its name."""
        state = self._state
        name = request.name or self._free_name()
        existing = state.jobs.get(name)
        if existing is not None and not existing.ended:
            raise ServiceError(
                "conflict",
                f"job {name} exists and is {existing.state}",
                object=f"job/{name}",
                hint="choose another name, or cancel it first",
            )
        request = request.model_copy(update={"name": name})
        check_possible(state.site, request)
        check_project(state.site, state.projects(), request)
        state.jobs.pop(name, None)  # a name may be used again; the new job queues last
        job = JobRecord(
            name=name,
            request=request,
            image=request.image or self._default_image,
            submitted_at=state.clock(),
            reason="in the queue",
        )
        state.put(job)
        state.events.add(
            "info",
            f"job/{name}",
            "JobSubmitted",
            f"wants {request.count} endpoint{'' if request.count == 1 else 's'}",
        )
        try:
            async with failpoints.around("save-job"):
                await state.commit(PutJob(job))
        except ServiceError:
            del state.jobs[name]
            raise
        return job

    async def cancel(self, name: str) -> JobRecord:
        """Stop a job, or take it out of the queue. Returns when its containers are gone."""
        job = self.get(name)
        if job.ended:
            raise ServiceError(
                "conflict", f"job {name} is {job.state} already", object=f"job/{name}"
            )
        await self._settled(name)
        if not self.get(name).ended:
            await self._ender.end(name, "cancelled", "cancelled by the operator")
        return self.get(name)

    async def pause(self, name: str) -> JobRecord:
        """Freeze all containers of a job."""
        self._require(name, "running")
        await self._frozen(name, frozen=True)
        return await self._saved(name, state="paused", reason="paused by the operator")

    async def resume(self, name: str) -> JobRecord:
        """Thaw a paused job."""
        self._require(name, "paused")
        await self._frozen(name, frozen=False)
        return await self._saved(name, state="running", reason="")

    def get(self, name: str) -> JobRecord:
        """Return one job. ServiceError ``not_found``."""
        try:
            return self._state.jobs[name]
        except KeyError:
            raise ServiceError(
                "not_found",
                f"there is no job {name}",
                object=f"job/{name}",
                hint="see `lightloom get jobs`",
            ) from None

    # --- from the queue to its containers -------------------------------------------------

    async def admit(self, job: JobRecord, placement: Placement) -> str:
        """Give the job its endpoints and begin to start it; return why not, or nothing."""
        state = self._state
        moving: Running | None = None
        try:
            if placement.moves:
                moves = {move.endpoint: move.target for move in placement.moves}
                moving = self._fabric.begin(Cause.PLACEMENT, moves)
            state.epoch += 1
            state.change(
                job.name,
                state="starting",
                reason="its light is being moved" if moving else "its containers are starting",
                endpoints=placement.endpoints,
                epoch=state.epoch,
                exit_codes=(None,) * len(placement.endpoints),
                reserved_at=None,
            )
            await self._ender.save(job.name)
        except ServiceError as error:
            if moving is not None:
                self._fabric.call_off(moving, error.message)
            state.jobs[job.name] = job
            return error.message
        if self._ender.is_ending(job.name) or state.jobs[job.name].state != "starting":
            if moving is not None:  # while the allocation became durable
                self._fabric.call_off(moving, f"job {job.name} was cancelled")
            return ""
        launch = self._tasks.spawn(self._launch(job.name, moving), f"launch {job.name}")
        self._launches[job.name] = launch
        launch.add_done_callback(lambda _: self._launches.pop(job.name, None))
        return ""

    async def requeue(self, name: str, reason: str) -> None:
        """Stop a running job's containers and let it wait again; it starts from its beginning.

        Does nothing with a job that is moving or ending: the next look decides afresh. While its
        containers stop it counts as starting, so a crash puts it back into the queue as well.
        """
        state = self._state
        job = self.get(name)
        if job.state != "running" or state.transaction_of(name) or self._ender.is_ending(name):
            return
        try:
            state.change(name, state="starting", reason=reason)
            await self._ender.save(name)
            await self._ender.stop(job)
            if state.jobs[name].state != "starting" or self._ender.is_ending(name):
                return  # cancelled meanwhile
            state.events.add("warning", f"job/{name}", "JobPreempted", reason)
            await self._back_to_queue(name, reason)
            await self._fabric.install()
        except ServiceError as error:
            log.error("requeue_not_durable", job=name, error=error.message)

    async def _back_to_queue(self, name: str, reason: str) -> None:
        self._state.change(
            name,
            state="pending",
            reason=reason,
            endpoints=(),
            exit_codes=(),
            started_at=None,
        )
        self._state.epoch += 1
        await self._ender.save(name)

    async def _launch(self, name: str, moving: Running | None) -> None:
        """Move light where the placement wants it, install flows, start the containers."""
        if moving is not None:
            tx = await self._fabric.carry_out(moving)
            if tx.outcome is not Outcome.COMMITTED:
                await self._again_or_fail(name, f"light could not move: {'; '.join(tx.reasons)}")
                return
        try:
            job = self._state.change(name, reason="its containers are starting")
            async with failpoints.around("flows"):
                await self._fabric.install(self._state.aggregators_of(job.endpoints))
        except ServiceError as error:
            await self._again_or_fail(name, error.message)
            return
        try:
            await self._start_ranks(name)
        except DEVICE_ERRORS as error:
            text = str(error) or "time-out"
            await self._ender.end(name, "failed", f"its containers did not start: {text}")
            return
        self._attempts.pop(name, None)

    async def _again_or_fail(self, name: str, reason: str) -> None:
        """Back into the queue, a bounded number of times."""
        attempts = self._attempts[name] = self._attempts.get(name, 0) + 1
        if attempts >= PLACEMENT_ATTEMPTS:
            del self._attempts[name]
            await self._ender.end(name, "failed", reason)
            return
        await self._back_to_queue(name, reason)

    async def _start_ranks(self, name: str) -> None:
        job = self._state.jobs[name]
        specs = rank_specs(self._state.site, self._state.cables, job)
        async with failpoints.around("start"):
            statuses = await self._engine.start(specs, START_TIMEOUT_S)
        known = {(s.job, s.rank, s.epoch): s for s in (*self._state.statuses, *statuses)}
        self._state.statuses = list(known.values())
        started = [s.started_at for s in statuses if s.started_at is not None]
        self._state.change(
            name,
            state="running",
            reason="",
            started_at=job.started_at or min(started, default=self._state.clock()),
        )
        homes = self._state.homes()
        where = ", ".join(f"{e} under {homes[e]}" for e in job.endpoints)
        self._state.events.add("info", f"job/{name}", "JobStarted", where)
        await self._ender.save(name)

    # --- asked for by a transaction -------------------------------------------------------

    def fail_job(self, job: str, reason: str) -> None:
        """End a job that cannot go on."""
        self._ender.later(job, "failed", reason)

    async def restart_job(self, job: str) -> None:
        """Start a stopped job again under a new epoch, ranks ordered for the new homes."""
        state = self._state
        record = state.jobs[job]
        endpoints = record.endpoints
        if record.request.rank_order is RankOrder.AGGREGATOR:
            endpoints = ring.order(endpoints, state.homes())
        state.epoch += 1
        state.change(
            job,
            state="starting",
            endpoints=endpoints,
            epoch=state.epoch,
            restarts=record.restarts + 1,
        )
        try:
            await self._start_ranks(job)
        except EngineError as error:
            raise ServiceError(
                "failed", str(error), object=f"job/{job}", hint=error.hint
            ) from error

    async def start_again(self, name: str) -> None:
        """Start a job whose rank died; a cancel waits until that has come to an end."""
        launch = self._tasks.spawn(self._start_again(name), f"start again {name}")
        self._launches[name] = launch
        launch.add_done_callback(lambda _: self._launches.pop(name, None))
        await asyncio.wait({launch})

    async def _start_again(self, name: str) -> None:
        try:
            await self.restart_job(name)
        except DEVICE_ERRORS as error:
            await self._ender.end(name, "failed", f"did not start again: {error or 'time-out'}")
        except ServiceError as error:
            await self._ender.end(name, "failed", f"did not start again: {error.message}")

    # --- recovery -------------------------------------------------------------------------

    async def recover(self) -> None:
        """After a restart: containers that run go on; half-started jobs queue again."""
        running = {(s.job, s.epoch) for s in self._state.statuses}
        for job in list(self._state.jobs.values()):
            if job.state != "starting":
                continue
            if (job.name, job.epoch) in running:
                await self._ender.stop(job)
            self._state.change(
                job.name,
                state="pending",
                reason="the controller restarted while it was starting",
                endpoints=(),
                exit_codes=(),
            )
            await self._ender.save(job.name)

    async def wake_up(self, name: str, containers: frozenset[tuple[str, int]]) -> None:
        """Let a job go on that an interrupted transaction may have left frozen or stopped.

        ``containers`` are the (job, epoch) of those that there are.
        """
        job = self._state.jobs.get(name)
        if job is None or job.state != "running":
            return
        try:
            if (job.name, job.epoch) in containers:
                await self._frozen(job.name, frozen=False)
            else:
                await self.restart_job(job.name)
        except ServiceError as error:
            self.fail_job(job.name, f"did not resume after a restart: {error.message}")

    # --- helpers --------------------------------------------------------------------------

    def _free_name(self) -> str:
        number = len(self._state.jobs) + 1
        while f"job-{number}" in self._state.jobs:
            number += 1
        return f"job-{number}"

    def _require(self, name: str, state: JobState) -> None:
        job = self.get(name)
        running = self._state.transaction_of(name)
        if job.state != state or running is not None or self._ender.is_ending(name):
            what = f"held by transaction {running.tx.id}" if running else job.state
            raise ServiceError(
                "conflict",
                f"job {name} is {what}, not {state}",
                object=f"job/{name}",
                hint=f"see `lightloom describe job {name}`",
            )

    async def _frozen(self, name: str, *, frozen: bool) -> None:
        act = self._engine.freeze if frozen else self._engine.thaw
        try:
            point = "freeze" if frozen else "thaw"
            async with failpoints.around(point), asyncio.timeout(FREEZE_TIMEOUT_S):
                await act(name)
        except EngineError as error:
            raise ServiceError(
                _service_code(error.code), str(error), object=f"job/{name}", hint=error.hint
            ) from error
        except (OSError, TimeoutError):
            raise ServiceError(
                "timeout",
                f"the agents of job {name} did not answer",
                object=f"job/{name}",
                hint="see `lightloom get nodes`",
            ) from None

    async def _settled(self, name: str) -> None:
        """Wait until nothing moves or starts the job; it is not pulled out from under that."""
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                while (running := self._state.transaction_of(name)) is not None:
                    await running.ended.wait()
                while (launch := self._launches.get(name)) is not None:
                    await asyncio.wait({launch})
        except TimeoutError:
            raise ServiceError(
                "timeout",
                f"job {name} is still being moved or started",
                object=f"job/{name}",
                hint="try again in a moment",
            ) from None

    async def _saved(self, name: str, *, state: JobState, reason: str) -> JobRecord:
        job = self._state.change(name, state=state, reason=reason)
        word = "JobPaused" if state == "paused" else "JobResumed"
        self._state.events.add("info", f"job/{name}", word, reason or "by the operator")
        await self._ender.save(name)
        return job


def _service_code(code: str) -> ErrorCode:
    known: dict[str, ErrorCode] = {
        "invalid": "invalid",
        "not_found": "not_found",
        "conflict": "conflict",
        "unavailable": "unavailable",
        "timeout": "timeout",
    }
    return known.get(code, "failed")
