"""What the controller does beside another engine: one object for the service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog

from agentlink.values import ScopeState
from controller.base.errors import ServiceError
from controller.base.tasks import Tasks
from controller.base.texts import shown
from controller.devices.engine import ExecutionEngine
from controller.devices.errors import DEVICE_ERRORS
from controller.devices.observed import ObservedEngine, ObservedError, SetupCheck
from controller.fabric.intent import FabricIntent
from controller.fabric.mover import Mover
from controller.observed import views
from controller.observed.allocation import Allocations
from controller.observed.fold import EngineRules
from controller.observed.keeper import ObservedKeeper
from controller.observed.publisher import TopologyPublisher
from controller.observed.waiting import WaitingJobs
from controller.ranks.calls import thaw_processes
from controller.schema.engine import AllocationAnswerView, EngineChecksView, EngineView
from controller.state.records import JobRecord
from controller.state.state import State
from scheduler.policy.triggers import Blocked
from sitefile import EnginePolicy

log = structlog.get_logger(__name__)

STILL_S = 3.0
"""Time for the engine to confirm that a job is as it was."""
RESUME_AGAIN_S = 2.0
FROZEN_EVERY_S = 5.0
LATELY_S = 600.0
"""A job whose light moved within this time was frozen by lightloom."""
SCOPES_S = 5.0
CHECK_S = 30.0
SHOWN = 20
"""Latest allocations, and jobs helped while they waited, that the status names."""


class ObservedDesk:
    """Watches the other engine's jobs, arranges their light, and reports the state."""

    def __init__(
        self,
        state: State,
        observed: ObservedEngine,
        engine: ExecutionEngine,
        policy: EnginePolicy,
        *,
        mover: Mover,
        intent: FabricIntent,
        tasks: Tasks,
    ) -> None:
        self._state = state
        self._observed = observed
        self._engine = engine
        self._tasks = tasks
        self._policy = policy
        self._publisher = TopologyPublisher(state, observed)
        self._keeper = ObservedKeeper(
            state,
            observed,
            engine,
            EngineRules(engine=observed.kind, endpoints=policy.endpoints()),
            intent=intent,
            tasks=tasks,
            changed=self._changed,
        )
        self._allocations = Allocations(
            state,
            observed,
            self._keeper,
            mover=mover,
            intent=intent,
            tasks=tasks,
            moved=self._publisher.moved,
        )
        self._waiting = WaitingJobs(
            state,
            observed,
            mover=mover,
            publisher=self._publisher,
            single=all(len(endpoints) == 1 for endpoints in policy.nodes.values()),
        )

    @property
    def loops(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """What goes on once the fabric is known."""
        watching = {"observed engine": self._keeper.run, "frozen scopes": self._thaw_forgotten}
        helping = {"topology": self._publisher.run, "waiting jobs": self._waiting.run}
        return watching | helping if self._policy.publish else watching

    async def close(self) -> None:
        """Release the engine's connections."""
        await self._observed.close()

    def _changed(self) -> None:
        self._allocations.check()
        self._waiting.changed()

    async def allocated(self, number: str) -> AllocationAnswerView:
        """Arrange the light of a job that the engine has just given endpoints. ServiceError."""
        done = await self._allocations.allocated(f"{self._observed.kind}:{number}")
        return views.allocation_view(done)

    async def still(self, job: JobRecord) -> None:
        """Confirm that a job is as it was last seen. ServiceError ``conflict`` when it is not."""
        told = job.observed
        if told is None:
            return
        what = f"job/{job.name}"
        try:
            async with asyncio.timeout(STILL_S):
                same = await self._observed.still(told.key, told.revision)
        except (ObservedError, TimeoutError) as error:
            text = str(error) or f"{told.engine} does not say in time whether it still runs"
            raise ServiceError("unavailable", text, object=what) from error
        if not same:
            raise ServiceError(
                "conflict",
                f"job {job.name} has changed in {told.engine} since it was last seen",
                object=what,
                hint="make a new plan",
            )

    def unresumed(self, name: str, why: str) -> None:
        """Go on trying to let a job continue that a transaction has frozen."""
        self._state.events.add("error", f"job/{name}", "NotResumed", why)
        self._tasks.spawn(self._resume(name), f"resume {name}")

    async def _resume(self, name: str) -> None:
        while (job := self._state.jobs.get(name)) is not None and job.holding:
            try:
                await thaw_processes(self._engine, self._state, name)
            except DEVICE_ERRORS as error:
                log.warning("job_not_resumed_yet", job=name, error=str(error))
                await asyncio.sleep(RESUME_AGAIN_S)
            else:
                self._state.events.add("info", f"job/{name}", "JobResumed", "its processes run")
                return

    async def _thaw_forgotten(self) -> None:
        """Note which agents freeze; let jobs continue that lightloom has left frozen.

        Scopes not frozen by a recent regroup are left alone.
        """
        before: frozenset[str] = frozenset()
        while True:
            try:
                seen = await self._engine.scopes(SCOPES_S)
            except DEVICE_ERRORS as error:
                log.warning("scopes_not_read", error=str(error))
                seen = {}
            if self._state.suspect or self._state.command_lost:
                await asyncio.sleep(FROZEN_EVERY_S)
                continue
            self._state.freezers = frozenset(seen)
            frozen = frozenset(
                scope
                for held in seen.values()
                for scope, state in held.items()
                if state is not ScopeState.RUNNING
            )
            stray = [job for job in self._running() if job.owner.scope in frozen & before]
            before = frozen
            for job in stray:
                text = "its processes are frozen although it runs: they continue"
                self._state.events.add("warning", f"job/{job.name}", "ContainerDrift", text)
                with contextlib.suppress(*DEVICE_ERRORS):  # the next look tries again
                    await thaw_processes(self._engine, self._state, job.name)
            await asyncio.sleep(FROZEN_EVERY_S)

    def _running(self) -> list[JobRecord]:
        """Return the engine's jobs that lightloom has frozen lately and that should run now."""
        state = self._state
        after = state.clock() - LATELY_S
        return [
            job
            for job in state.jobs.values()
            if job.state == "running"
            and job.owner.engine == self._observed.kind
            and max(job.pauses.values(), default=0.0) > after
            and not state.in_transaction(job.name)
        ]

    def blocked(self) -> Blocked | None:
        """Return the first waiting job that only moves of running endpoints would help."""
        return self._waiting.blocked

    def status(self) -> EngineView:
        """Return how it stands with the engine."""
        jobs = [job for job in self._state.jobs.values() if job.observed and not job.ended]
        latest = list(self._allocations.latest.values())
        helped = list(self._waiting.latest.values())[-SHOWN:]
        spent = [done.engine_s + done.plan_s + done.light_s for done in latest]
        reach, publishes = self._observed.reach(), self._policy.publish
        return EngineView(
            kind=self._observed.kind,
            up=reach.up,
            since=reach.since,
            detail=shown(reach.detail),
            version=shown(reach.version),
            transport=reach.transport,
            missing=[shown(text) for text in reach.missing],
            isolation=self._policy.isolation,
            endpoints=len(self._observed.endpoints),
            jobs=sum(job.holding for job in jobs),
            waiting=sum(job.state == "waiting" for job in jobs),
            left_out=self._keeper.left_out,
            published=views.published_view(self._publisher.state) if publishes else None,
            allocations=[views.allocation_view(done) for done in reversed(latest[-SHOWN:])],
            helped=[views.waiting_view(done) for done in reversed(helped)],
            slowest_s=max(spent, default=None),
        )

    async def check(self) -> EngineChecksView:
        """Examine the engine's set-up; bounded in time."""
        try:
            async with asyncio.timeout(CHECK_S):
                lines = await self._observed.check()
        except TimeoutError:
            text = f"it does not answer within {CHECK_S:.0f} s"
            lines = (SetupCheck("reach", "fault", text, "see the engine's own log"),)
        return views.checks_view(self._observed.kind, lines)
