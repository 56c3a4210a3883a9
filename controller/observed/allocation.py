"""Moves idle light under the endpoints that an engine has just given to a job.

The engine places anywhere; nothing runs on the endpoints yet, so no job is paused. The engine's
hook waits for the answer. The work does not depend on the hook: it may be killed, it may be called
again after a restart of the engine, and a poll that sees the allocation begins the same work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from base import clock
from base.pools import Pool
from controller.base.errors import ErrorCode, ServiceError
from controller.base.tasks import Tasks, seen
from controller.devices.observed import (
    EngineJob,
    JobChanges,
    ObservedEngine,
    ObservedError,
    Turn,
    Verdict,
)
from controller.fabric.intent import FabricIntent
from controller.fabric.mover import Mover
from controller.observed.fold import name_of
from controller.observed.keeper import ObservedKeeper
from controller.schema.base import Severity
from controller.state.intend import keys
from controller.state.records import JobRecord
from controller.state.state import State
from controller.transaction.model import Cause, Outcome
from scheduler.metrics import span
from scheduler.model import Locality, Placement, Request, Wait
from scheduler.placement.place import place

log = structlog.get_logger(__name__)

ENGINE_S = 3.0
"""Time for the engine to say which endpoints it gave."""
LIGHT_S = 6.0
"""Time for the light of one allocation; a hook waits for 10 s."""
AGAIN_S = 0.1
"""Between two attempts when other light is being moved."""
KEPT = 1000
"""Allocations whose answers are kept, for hooks that are called twice."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Allocated:
    """What was done for an allocation, and how long each part took, in seconds."""

    key: str
    attempt: int
    verdict: Verdict
    text: str
    """For the job's owner."""
    moves: int = 0
    transaction: str = ""
    engine_s: float = 0.0
    """Asking the engine which endpoints it gave."""
    plan_s: float = 0.0
    light_s: float = 0.0
    at: float = 0.0


class Allocations:
    """Answers each allocation once, however often it is asked for."""

    def __init__(
        self,
        state: State,
        observed: ObservedEngine,
        keeper: ObservedKeeper,
        *,
        mover: Mover,
        intent: FabricIntent,
        tasks: Tasks,
        moved: Callable[[], None],
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        """``moved`` is called when light was moved: the topology is to be published."""
        self._state = state
        self._observed = observed
        self._keeper = keeper
        self._mover = mover
        self._intent = intent
        self._tasks = tasks
        self._moved = moved
        self._monotonic = monotonic
        self._pool = Pool("allocations")
        self._works: dict[tuple[str, int], asyncio.Task[Allocated]] = {}
        self.latest: dict[str, Allocated] = {}
        """By key; the oldest are forgotten."""

    async def allocated(self, key: str) -> Allocated:
        """Bring the job's endpoints together; join the work when it is under way.

        The work goes on when the caller is cancelled. ServiceError ``not_found`` for a job that
        the engine does not know, ``conflict`` for one that holds nothing, ``unavailable`` when the
        engine does not answer.
        """
        self._state.require_command()
        began = self._monotonic()
        found = await self._looked_up(key)
        former = await self._former(found)
        engine_s = self._monotonic() - began
        await self._keeper.apply(JobChanges((found, *former), complete=False))
        return await self._begun(found, engine_s)

    def check(self) -> None:
        """Begin the work for allocations that no hook has announced."""
        for job in self._state.jobs.values():
            told = job.observed
            if told is None or job.state != "starting" or told.turn is not Turn.ALLOCATED:
                continue
            if told.answered or (told.key, told.attempt) in self._works:
                continue
            self._tasks.spawn(self._unannounced(told.key), f"allocation of {told.key}")

    async def _unannounced(self, key: str) -> None:
        try:
            await self.allocated(key)
        except ServiceError as error:
            log.info("allocation_not_served", job=key, reason=error.message)

    async def _looked_up(self, key: str) -> EngineJob:
        try:
            async with asyncio.timeout(ENGINE_S):
                found = await self._observed.read_job(key)
        except TimeoutError:
            raise ServiceError(
                "unavailable",
                f"{self._observed.kind} does not answer within {ENGINE_S:g} s",
                object=f"engine/{self._observed.kind}",
                hint="see `lightloom engine check`",
            ) from None
        except ObservedError as error:
            code: ErrorCode = "invalid" if error.code == "invalid" else "unavailable"
            raise ServiceError(code, error.message, object=error.obj, hint=error.hint) from error
        if found is None:
            raise ServiceError(
                "not_found",
                f"{self._observed.kind} knows no job {key.partition(':')[2]}",
                object=f"job/{name_of(key)}",
                hint="the hook passes the engine's own number of a job",
            )
        return found

    async def _former(self, found: EngineJob) -> list[EngineJob]:
        """Return the jobs that had the endpoints before, as the engine has them now.

        It gives endpoints away in the moment in which a job ends, and reports that end later.
        """
        holders = self._state.jobs.holders()
        keys = {
            holder.observed.key
            for endpoint in found.endpoints
            if (holder := holders.get(endpoint)) is not None and holder.observed is not None
        } - {found.key}

        async def asked(key: str) -> EngineJob | None:
            with suppress(ServiceError):
                return await self._looked_up(key)
            return None

        return [one for one in await asyncio.gather(*map(asked, sorted(keys))) if one is not None]

    async def _begun(self, found: EngineJob, engine_s: float) -> Allocated:
        ident = (found.key, found.attempt)
        work = self._works.get(ident)
        if work is None or (work.done() and work.exception() is not None):
            work = asyncio.create_task(self._serve(found, engine_s))
            work.add_done_callback(seen)
            if found.turn is Turn.WAITS:  # announced too soon: its allocation is still to come
                return await asyncio.shield(work)
            self._works[ident] = work
            while len(self._works) > KEPT:
                oldest = next(iter(self._works))
                if not self._works[oldest].done():
                    break
                del self._works[oldest]
        return await asyncio.shield(work)

    async def _serve(self, found: EngineJob, engine_s: float) -> Allocated:
        name = name_of(found.key)
        job = self._state.jobs.get(name)
        done = Allocated(
            key=found.key,
            attempt=found.attempt,
            verdict=Verdict.GO,
            text="no endpoint of the site is in its allocation",
            engine_s=round(engine_s, 6),
            at=self._state.clock(),
        )
        if job is not None and job.holding and job.endpoints:
            if found.turn is Turn.RUNNING:
                done = replace(done, text="it runs already: a plan may regroup it")
            else:
                done = await self._regrouped(job, done)
        if found.turn is not Turn.WAITS:
            self._keep(done)
            self._tasks.spawn(self._answer(done), f"answer to {done.key}")
        return done

    async def _regrouped(self, job: JobRecord, done: Allocated) -> Allocated:
        """Move idle light under a job's endpoints, and prove the paths."""
        deadline = self._monotonic() + LIGHT_S
        spent_s = 0.0
        while True:
            began = self._monotonic()
            placed = await self._placed(job)
            spent_s += self._monotonic() - began
            done = replace(done, plan_s=round(spent_s, 6))
            if isinstance(placed, Wait):
                text = f"its light stays as it is: {placed.reason}"
                return replace(await self._lit(job, done), text=text)
            if not placed.moves:
                return replace(await self._lit(job, done), text=self._where(job, placed.span))
            moves = {move.endpoint: move.target for move in placed.moves}
            began = self._monotonic()
            try:
                running = self._mover.begin(Cause.PLACEMENT, moves, stopped=job.name)
            except ServiceError as error:
                if error.code != "conflict" or self._monotonic() > deadline:
                    text = f"its light could not be moved in time: {error.message}"
                    return replace(await self._lit(job, done), text=text)
                await asyncio.sleep(AGAIN_S)
                continue
            tx = await self._mover.carry_out(running)
            done = replace(
                done,
                light_s=round(done.light_s + self._monotonic() - began, 6),
                transaction=tx.id,
                moves=len(moves),
            )
            if tx.outcome is Outcome.COMMITTED:
                self._moved()
                homes = self._state.light.homes()
                return replace(done, text=self._where(job, span(job.endpoints, homes), len(moves)))
            if self._monotonic() > deadline:
                text = f"its light could not be moved: {'; '.join(tx.reasons)}"
                return replace(done, moves=0, text=text)

    async def _placed(self, job: JobRecord) -> Placement | Wait:
        """Return the moves of idle endpoints that bring the job's endpoints together."""
        fabric, count = self._state.fabric(), len(job.endpoints)
        if count < 2 or job.request.locality is Locality.ANY:
            return Placement(job.name, job.endpoints, span=span(job.endpoints, fabric.homes))
        # The job itself is left out: its endpoints are idle, whatever else is not.
        others = tuple(other for other in fabric.jobs if other.name != job.name)
        request = Request(job.name, count, locality=Locality.REGROUP, endpoints=job.endpoints)
        return await self._pool.run(place, replace(fabric, jobs=others), request)

    async def _lit(self, job: JobRecord, done: Allocated) -> Allocated:
        """Wait until the aggregators forward the job's traffic; DARK when they do not."""
        try:
            await self._intent.converge(self._state.light.aggregators_of(job.endpoints))
        except ServiceError as error:
            log.warning("flows_of_an_allocation_missing", job=job.name, error=error.message)
            return replace(done, verdict=Verdict.DARK)
        return done

    def _where(self, job: JobRecord, aggregators: int, moves: int = 0) -> str:
        count = len(job.endpoints)
        under = "1 aggregator" if aggregators == 1 else f"{aggregators} aggregators"
        moved = f"; {moves} moves of idle light" if moves else ""
        one = "endpoint" if count == 1 else "endpoints"
        return f"{count} {one} under {under}{moved}"

    def _keep(self, done: Allocated) -> None:
        self.latest.pop(done.key, None)
        self.latest[done.key] = done
        while len(self.latest) > KEPT:
            del self.latest[next(iter(self.latest))]
        job = self._state.jobs.get(name_of(done.key))
        if job is None or job.observed is None or job.observed.attempt != done.attempt:
            return
        if not job.ended:
            self._state.jobs.change(job.name, observed=replace(job.observed, answered=done.text))
            self._state.journal.owe(keys.job(job.name))
        severity: Severity = "info" if done.verdict is Verdict.GO else "warning"
        self._state.events.add(severity, f"job/{job.name}", "LightArranged", done.text)

    async def _answer(self, done: Allocated) -> None:
        try:
            await self._observed.answer(done.key, done.verdict, done.text)
        except ObservedError as error:
            log.warning("owner_not_told", job=done.key, error=str(error))
