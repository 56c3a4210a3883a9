"""Operations on jobs: submit, cancel, pause, resume, start. The queue decides which one starts."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any

import structlog

from controller.base import failpoints
from controller.base.errors import ServiceError
from controller.base.tasks import Tasks
from controller.devices.engine import ExecutionEngine
from controller.devices.errors import DEVICE_ERRORS
from controller.fabric.intent import FabricIntent
from controller.fabric.mover import Mover
from controller.images.keeper import FetchStoppedError, ImageKeeper
from controller.jobs.refusals import StartRefusal, StartRefusals, Whose, judge
from controller.jobs.submission import Submission, Submissions
from controller.ranks import calls
from controller.ranks.ends import JobEnder
from controller.ranks.starter import RankStarter
from controller.ranks.strangers import later_run
from controller.schema.base import JobState
from controller.state.intend import keys
from controller.state.jobs import Handled
from controller.state.records import JobRecord
from controller.state.state import State
from controller.state.transactions import RunningTransaction
from controller.transaction.model import (
    Cause,
    Outcome,
)
from scheduler.model import Placement

log = structlog.get_logger(__name__)

SETTLE_TIMEOUT_S = 120.0
STOP_AGAIN_S = 2.0
"""Between two attempts to stop what may be left of a run or of a start that was refused."""
CANCELLED = "cancelled by the operator"

ContainerCall = Callable[[ExecutionEngine, JobRecord], Awaitable[None]]
"""Freezes or thaws all containers of a job."""

_REASONS: dict[JobState, str] = {"paused": "paused by the operator", "running": ""}


class JobKeeper:
    """Takes jobs from submission to their end, and changes their state on request."""

    def __init__(
        self,
        state: State,
        engine: ExecutionEngine,
        tasks: Tasks,
        *,
        mover: Mover,
        intent: FabricIntent,
        starter: RankStarter,
        ender: JobEnder,
        images: ImageKeeper,
        default_image: str,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._state = state
        self._mover = mover
        self._intent = intent
        self._starter = starter
        self._engine = engine
        self._ender = ender
        self._tasks = tasks
        self._images = images
        self._submissions = Submissions(state, default_image, random_bytes)
        self._lost_at_start: Callable[[str], Awaitable[bool]]
        """Set by ``report_to`` before the first job starts."""
        self._refusals = StartRefusals(state)
        self._launches: dict[str, asyncio.Task[None]] = {}

    def report_to(self, lost_at_start: Callable[[str], Awaitable[bool]]) -> None:
        """Name what takes over a job that did not start since it lost hardware."""
        self._lost_at_start = lost_at_start

    @property
    def refusals(self) -> StartRefusals:
        """The starts that servers refused."""
        return self._refusals

    # --- operations -----------------------------------------------------------------------

    async def submit(self, asked: Sequence[Submission], user: str = "") -> list[JobRecord]:
        """Queue jobs of ``user``, all or none, as ``Submissions.submit``. ServiceError."""
        return await self._submissions.submit(asked, user)

    async def cancel(self, name: str) -> JobRecord:
        """Stop a job, or remove it from the queue. Returns when its end is durable.

        If the job is ending already, waits for that. ServiceError when the end is not durable yet.
        """
        job = self._stoppable(name)
        if job.ended:
            raise _ended_already(job)
        self._state.jobs.unwanted.add(name)
        try:
            with self._images.stopped(name):
                await self._settled(name)
        finally:
            self._state.jobs.unwanted.discard(name)
        now = self._state.jobs.get(name)
        if now is None or now.submitted_at != job.submitted_at:
            raise _ended_already(job, "ended meanwhile")
        if not now.ended:
            error = await self._ender.end(name, "cancelled", CANCELLED)
            if error is not None:
                raise self._not_cancelled(name, error)
        return self._state.jobs.require(name)

    def _not_cancelled(self, name: str, error: ServiceError) -> ServiceError:
        going = self._ender.is_ending(name)
        return ServiceError(
            error.code,
            f"job {name} is stopped, but its end is not written: {error.message}"
            if going
            else f"job {name} is not cancelled: {error.message}",
            object=f"job/{name}",
            hint="it ends as soon as the store can write it" if going else error.hint,
        )

    async def pause(self, name: str) -> JobRecord:
        """Freeze all containers of a job."""
        return await self._switch(name, "running", "paused", calls.freeze, undo=self._thaw)

    async def resume(self, name: str) -> JobRecord:
        """Thaw a paused job."""
        return await self._switch(name, "paused", "running", self._thaw, undo=calls.freeze)

    async def _thaw(self, engine: ExecutionEngine, job: JobRecord) -> None:
        await calls.thaw(engine, self._state, job)

    async def _switch(
        self,
        name: str,
        before: JobState,
        after: JobState,
        act: ContainerCall,
        *,
        undo: ContainerCall,
    ) -> JobRecord:
        """Act on a job's containers and save its new state; undo both if it cannot be saved."""
        self._require(name, before)
        job = self._stoppable(name)
        with self.alone(name, "is being paused" if after == "paused" else "is being resumed"):
            await act(self._engine, job)
            try:
                return await self._save_switch(name, before, after)
            except ServiceError:
                now = self._state.jobs.get(name)
                undone = now is not None and now.state == before
                if undone and not self._ender.is_ending(name):
                    await undo(self._engine, job)
                raise

    def is_busy(self, name: str) -> bool:
        """Whether a transaction, a launch or another operation is working on the job."""
        state = self._state
        moving = state.transactions.of_job(name) is not None
        return moving or name in self._launches or name in state.jobs.handled

    # --- from the queue to its containers -------------------------------------------------

    async def admit(self, job: JobRecord, placement: Placement) -> str:
        """Allocate the job's endpoints and begin to start it; return why not, or ""."""
        state = self._state
        if self._ender.is_ending(job.name) or state.changing(keys.job(job.name)):
            return ""  # its end is being saved
        if missing := state.reports.missing:
            return f"waits for the first report of {missing}"
        unknown = state.unknown
        if unknown and later_run(state.jobs.statuses, job.name, job.epoch)[0] in unknown:
            return "containers of a later run of it live: see its events"
        moving: RunningTransaction | None = None
        try:
            if placement.moves:
                moves = {move.endpoint: move.target for move in placement.moves}
                moving = self._mover.begin(Cause.PLACEMENT, moves)
            state.next_epoch()
            epoch = state.epoch
            await self._ender.save(
                job.name,
                lambda now: replace(
                    now,
                    state="starting",
                    reason="its light is being moved" if moving else "its containers are starting",
                    endpoints=placement.endpoints,
                    spares=placement.spares,
                    epoch=epoch,
                    exit_codes=(None,) * len(placement.endpoints),
                    reserved_at=None,
                    could_start_at=None,
                ),
            )
        except ServiceError as error:
            if moving is not None:
                self._mover.call_off(moving, error.message)
            return error.message
        if self._ender.is_ending(job.name) or state.jobs[job.name].state != "starting":
            if moving is not None:  # cancelled while the allocation became durable
                self._mover.call_off(moving, f"job {job.name} was cancelled")
            return ""
        self._launched(job.name, self._launch(job.name, moving))
        return ""

    async def requeue(self, name: str, reason: str) -> None:
        """Stop a running job's containers and put it back into the queue.

        Ignores a job that is moving or ending: the next decision considers it again. While its
        containers stop it counts as starting and keeps its endpoints, so a crash puts it back into
        the queue as well. Returns after the first attempt to stop them; others follow in a task.
        """
        state = self._state
        job = self._state.jobs.require(name)
        if job.state != "running" or state.transactions.of_job(name) or self._ender.is_ending(name):
            return

        def stopping(now: JobRecord) -> JobRecord:
            self._require_state(name, "running")
            return replace(now, state="starting", reason=reason)

        try:
            await self._ender.save(name, stopping)
        except ServiceError as error:
            log.error("requeue_not_durable", job=name, error=error.message)
            state.jobs.wake.set()
            return
        tried = asyncio.Event()

        async def stop() -> None:
            try:
                if await self.stop_and_queue(name, job.epoch, reason, tried):
                    state.events.add("warning", f"job/{name}", "JobPreempted", reason)
            finally:
                tried.set()

        self._tasks.spawn(stop(), f"requeue {name}")
        await tried.wait()

    async def stop_and_queue(
        self, name: str, epoch: int, reason: str, tried: asyncio.Event | None = None
    ) -> bool:
        """Queue a starting job as soon as all its agents have confirmed that no rank is left.

        Until then it keeps its endpoints: a rank that hangs, or whose agent is silent, may live
        there. One that lost a server meanwhile is recovered as after any loss: the server may
        never answer again. ``tried`` is set after an attempt that failed. Return whether the job is
        in the queue.
        """
        report = True
        while (job := self._starting(name, epoch)) is not None:
            problem = await self._ender.stop(job, report=report)
            if self._starting(name, epoch) is None:
                break  # cancelled meanwhile; the name may belong to another job now
            if not problem:
                await self.back_to_queue(name, reason)
                return True
            self._state.jobs.change(name, reason=f"{reason}; {problem}")
            if tried is not None:
                tried.set()
            if not report and await self._lost_at_start(name):  # agents get one attempt to connect
                break
            report = False
            await asyncio.sleep(STOP_AGAIN_S)
        return False

    def _starting(self, name: str, epoch: int) -> JobRecord | None:
        """Return the job while it is in this run, starting, and not ending."""
        job = self._state.jobs.get(name)
        same = job is not None and job.state == "starting" and job.epoch == epoch
        return job if same and not self._ender.is_ending(name) else None

    async def back_to_queue(self, name: str, reason: str) -> None:
        """Release a job's endpoints and flows and queue it; its containers have been removed."""
        self._state.jobs.change(
            name,
            state="pending",
            reason=reason,
            endpoints=(),
            spares=(),
            exit_codes=(),
            started_at=None,
        )
        self._state.next_epoch()
        await self._ender.keep(name)
        try:
            await self._intent.converge()
        except ServiceError as error:  # the drift watch retries
            log.error("flows_of_a_waiting_job_stay", job=name, error=error.message)

    async def _launch(self, name: str, moving: RunningTransaction | None) -> None:
        """Move the light that the placement moves, install flows, start the containers."""
        if moving is not None:
            tx = await self._mover.carry_out(moving)
            if tx.outcome is not Outcome.COMMITTED:
                await self._again(name, f"the light could not be moved: {'; '.join(tx.reasons)}")
                return
        try:
            job = self._state.jobs.change(name, reason="its containers are starting")
            async with failpoints.around("flows"):
                await self._intent.converge(self._state.light.aggregators_of(job.endpoints))
        except ServiceError as error:
            await self._again(name, error.message)
            return
        try:
            await self._starter.start(name)
        except FetchStoppedError:
            await self._ender.end(name, "cancelled", CANCELLED)
            return
        except (ServiceError, *DEVICE_ERRORS) as error:
            await self._not_started(name, error, "its containers did not start")
            return
        self._refusals.started(self._state.jobs[name])

    async def _not_started(self, name: str, error: Exception, what: str) -> str:
        """Go on with a job whose start failed; return why it is in the queue, if it is.

        Lost hardware is recovered. A start that was refused by the server's reason, or that an
        agent did not answer, is placed again once all agents that answer have confirmed that no
        rank is left. All else is the job's end.
        """
        job = self._state.jobs[name]
        if await self._lost_at_start(name):
            return ""
        text = f"{what}: {str(error) or 'time-out'}"
        servers = {
            endpoint: self._state.cables[endpoint].server
            for endpoint in job.endpoints
            if endpoint in self._state.cables
        }
        refusal = judge(job, error, servers)
        if refusal is None and isinstance(error, TimeoutError):
            refusal = StartRefusal(Whose.SERVER, tuple(servers), "no answer in time", counts=False)
        if refusal is None or refusal.whose is Whose.JOB:
            if name not in self._state.jobs.unwanted:
                await self._ender.end(name, "failed", text)
            return ""
        if not await self._stopped(job, text):
            return ""
        if not await self._refusals.refused(job, refusal):
            await self._ender.end(name, "failed", text)
            return ""
        self._state.events.add("warning", f"job/{name}", "NotStarted", f"{text}; it waits again")
        await self.back_to_queue(name, text)
        return text

    async def _stopped(self, job: JobRecord, text: str) -> bool:
        """Stop what may be left of a start; False when the job went another way meanwhile.

        Agents that answer are asked until they confirm it, or the job is cancelled: another run
        must not begin beside it. A server that stays silent is left behind: its endpoints get
        nothing until it has answered, and a rank that lives there is stopped then.
        """
        state = self._state
        servers = set(calls.placed(state, job).values())
        asked, report = set(servers), True
        while job.name not in state.jobs.unwanted:
            asked -= self._left_behind(job, asked)
            problem = await self._ender.stop(job, report=report, servers=asked) if asked else ""
            if self._starting(job.name, job.epoch) is None:
                return False
            if not problem:
                self._engine.leave(job.name, servers)
                return True
            state.jobs.change(job.name, reason=f"{text}; {problem}")
            if await self._lost_at_start(job.name):  # it waits as long as silence must last
                return False
            report = False
            await asyncio.sleep(STOP_AGAIN_S)
        return False

    def _left_behind(self, job: JobRecord, servers: Collection[str]) -> set[str]:
        """Leave silent servers behind, and return them; none while this controller is cut off."""
        state = self._state
        if state.suspect:
            return set()
        answering, placed = state.connections.servers(), calls.placed(state, job)
        silent = {server for server in servers if not answering.get(server)}
        there = [job.endpoints[rank] for rank, server in placed.items() if server in silent]
        state.drains.leave(job.name, job.epoch, there)
        return silent

    async def _again(self, name: str, reason: str) -> None:
        """Put a job back into the queue whose light or flows failed: they are not its own."""
        job = self._state.jobs[name]
        await self._refusals.refused(
            job, StartRefusal(Whose.SERVER, job.endpoints, reason, counts=False)
        )
        await self.back_to_queue(name, reason)

    # --- a restart after a rank died ------------------------------------------------------

    async def start_again(self, name: str) -> str:
        """Start a job again whose rank died; a cancel waits until the start is over.

        Return why it went back to the queue; nothing when it did not.
        """
        queued: list[str] = []
        await asyncio.wait({self._launched(name, self._start_again(name, queued))})
        return "".join(queued)

    async def _start_again(self, name: str, queued: list[str]) -> None:
        try:
            await self._starter.restart(name)
        except FetchStoppedError:
            await self._ender.end(name, "cancelled", CANCELLED)
        except (ServiceError, *DEVICE_ERRORS) as error:
            queued.append(await self._not_started(name, error, "did not start again"))

    # --- helpers --------------------------------------------------------------------------

    def _stoppable(self, name: str) -> JobRecord:
        """Return a job that lightloom stops. ServiceError ``not_found``, else ``conflict``."""
        job = self._state.jobs.require(name)
        owner = job.owner
        if not owner.stops:
            raise ServiceError(
                "conflict",
                f"job {name} belongs to {owner.engine}: lightloom moves its light and nothing else",
                object=f"job/{name}",
                hint=f"use {owner.engine}'s own commands for its job {owner.number}",
            )
        return job

    def _launched(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Spawn and register a job's launch; one launch may begin while another one ends."""

        def over(ended: asyncio.Task[None]) -> None:
            if self._launches.get(name) is ended:
                del self._launches[name]

        launch = self._launches[name] = self._tasks.spawn(work, f"launch {name}")
        launch.add_done_callback(over)
        return launch

    def _require(self, name: str, state: JobState) -> None:
        running = self._state.transactions.of_job(name)
        doing = f"is held by transaction {running.tx.id}" if running else self._ender.doing(name)
        self._require_state(name, state, doing)

    def _require_state(self, name: str, state: JobState, doing: str = "") -> None:
        job = self._state.jobs.require(name)
        if job.state != state or doing:
            raise ServiceError(
                "conflict",
                f"job {name} {doing or f'is {job.state}'}, not {state}",
                object=f"job/{name}",
                hint=f"see `lightloom describe job {name}`",
            )

    @contextlib.contextmanager
    def alone(self, name: str, doing: str) -> Iterator[None]:
        """Reserve a job for one operation: its light is not moved meanwhile, and a cancel waits."""
        handled = self._state.jobs.handled[name] = Handled(doing)
        try:
            yield
        finally:
            del self._state.jobs.handled[name]
            handled.over.set()

    async def _settled(self, name: str) -> None:
        """Wait until no transaction, launch or other operation is working on the job."""
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                while True:  # when one has ended, another may have begun
                    if (running := self._state.transactions.of_job(name)) is not None:
                        await running.ended.wait()
                    elif (launch := self._launches.get(name)) is not None:
                        await asyncio.wait({launch})
                    elif (handled := self._state.jobs.handled.get(name)) is not None:
                        await handled.over.wait()
                    else:
                        return
        except TimeoutError:
            raise ServiceError(
                "timeout",
                f"job {name} is still being moved or started",
                object=f"job/{name}",
                hint="try again in a moment",
            ) from None

    async def _save_switch(self, name: str, before: JobState, after: JobState) -> JobRecord:
        reason = _REASONS[after]

        def switched(now: JobRecord) -> JobRecord:
            # A rank may have died during the call to the agents: such a job ends, or starts again.
            self._require_state(name, before, "is ending" if self._ender.is_ending(name) else "")
            return replace(now, state=after, reason=reason)

        await self._ender.save(name, switched)
        event = "JobPaused" if after == "paused" else "JobResumed"
        self._state.events.add("info", f"job/{name}", event, reason or "by the operator")
        return self._state.jobs.require(name)


def _ended_already(job: JobRecord, how: str = "") -> ServiceError:
    return ServiceError(
        "conflict", f"job {job.name} {how or f'is {job.state} already'}", object=f"job/{job.name}"
    )
