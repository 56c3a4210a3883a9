"""Moves light for the jobs in an engine's queue that wait for endpoints near each other.

The engine does not say whether light helps: Slurm calls waiting for ``--switches`` and waiting for
nodes the same. The model of the fabric decides. Idle light is moved at once; where running jobs
are in the way, the site's trigger for waiting jobs makes a plan, within the jobs' budgets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from base import clock
from base.pools import Pool
from controller.base.errors import ServiceError
from controller.devices.observed import ObservedEngine, ObservedError, Verdict
from controller.fabric.mover import Mover
from controller.observed.publisher import TopologyPublisher
from controller.state.records import JobRecord
from controller.state.state import State
from controller.transaction.model import Cause, Outcome
from scheduler.model import Fabric, Locality, Placement, Request, Wait
from scheduler.placement.place import place
from scheduler.policy.triggers import Blocked

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 5.0
"""Longest time between two looks; a change of the engine's queue wakes at once."""
PAUSE_S = 0.2
"""Shortest time between two looks."""
PUBLISH_S = 20.0
"""Time for the engine to have a topology that a waiting job needs."""
AGAIN_S = 30.0
LONGEST_S = 1800.0
"""The same moves that could not be made are tried again after ``AGAIN_S`` seconds, then after twice
as many each time up to this."""
KEPT = 1000


@dataclass(slots=True, frozen=True, kw_only=True)
class Helped:
    """What was done for a waiting job. Durations in seconds."""

    job: str
    text: str
    moves: int = 0
    transaction: str = ""
    plan_s: float = 0.0
    light_s: float = 0.0
    publish_s: float = 0.0
    at: float = 0.0


@dataclass(slots=True, frozen=True)
class LightOption:
    """What light can do for a waiting job."""

    placement: Placement | None
    """Idle endpoints and their moves; None when idle light does not help."""
    why: str = ""
    moves_needed: int | None = None
    """Moves of running endpoints that would help; None when none would."""


def room_for(mine: Fabric, job: JobRecord) -> LightOption:
    """Return how light helps a waiting job on the fabric that it may use. Pure.

    A job of several aggregators' size is helped when its span comes down to what it accepts.
    """
    asked = job.observed
    leaves = asked.leaves if asked is not None and asked.leaves else 1
    request = Request(job.name, job.request.count, locality=Locality.REGROUP)
    found = place(mine, request)
    if isinstance(found, Wait):
        return LightOption(None, found.reason, found.moves_needed)
    if found.span > max(leaves, found.span_possible):
        strict = place(mine, replace(request, locality=Locality.STRICT))
        needed = strict.moves_needed if isinstance(strict, Wait) else None
        return LightOption(None, "the ports of one aggregator are in use by running jobs", needed)
    return LightOption(found)


class WaitingJobs:
    """Serves the first job of the engine's queue that light can help."""

    def __init__(
        self,
        state: State,
        observed: ObservedEngine,
        *,
        mover: Mover,
        publisher: TopologyPublisher,
        single: bool,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        """``single``: every node of the engine has one endpoint, so light moves whole nodes."""
        self._state = state
        self._observed = observed
        self._mover = mover
        self._publisher = publisher
        self._single = single
        self._monotonic = monotonic
        self._pool = Pool("waiting jobs")
        self._wake = asyncio.Event()
        self._failed: Mapping[str, str | None] = {}
        """Moves that could not be made."""
        self._pause_s = 0.0
        self._again_at = 0.0
        self.latest: dict[str, Helped] = {}
        """By job's name; the oldest are forgotten."""
        self.blocked: Blocked | None = None
        """The first job that only moves of running endpoints would help, and how many."""

    def changed(self) -> None:
        """Note that the queue, the endpoints or the light have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Look at the queue after every change, until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self.help_first()
            except ServiceError as error:
                log.info("waiting_job_not_helped", reason=error.message)
            await asyncio.sleep(PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._wake.wait()

    async def help_first(self) -> Helped | None:
        """Help the first job that waits for something light can change; return what was done."""
        state = self._state
        self.blocked = None
        first = self._first()
        if first is None or state.suspect or state.command_lost or state.transactions.moving():
            return None
        if not self._single:
            self._note(first, "several endpoints share a node: light does not move nodes")
            return None
        began = self._monotonic()
        room = await self._pool.run(room_for, state.fabric_of(first), first)
        plan_s = self._monotonic() - began
        now = state.jobs.get(first.name)
        if room.placement is not None and now is not None and now.state == "waiting":
            # Without moves the engine has what it needs, or is about to read it.
            return (
                await self._served(first, room.placement, plan_s) if room.placement.moves else None
            )
        if room.placement is None:
            self._note(first, f"light does not help now: {room.why}")
            if room.moves_needed:
                self.blocked = Blocked(first.name, room.moves_needed)
        return None

    async def _served(self, job: JobRecord, placement: Placement, plan_s: float) -> Helped | None:
        moves = {move.endpoint: move.target for move in placement.moves}
        began = self._monotonic()
        if moves == self._failed and began < self._again_at:
            return None
        running = self._mover.begin(Cause.PLACEMENT, moves)
        tx = await self._mover.carry_out(running)
        light_s = self._monotonic() - began
        if tx.outcome is not Outcome.COMMITTED:
            self._note(job, f"its light could not be moved: {'; '.join(tx.reasons)}")
            same = moves == self._failed
            self._pause_s = min(2 * self._pause_s, LONGEST_S) if same else AGAIN_S
            self._failed, self._again_at = moves, self._monotonic() + self._pause_s
            return None
        self._failed = {}
        began = self._monotonic()
        told = await self._publisher.current(PUBLISH_S)
        publish_s = self._monotonic() - began
        count = len(placement.endpoints)
        text = f"{count} idle endpoints brought together by {len(moves)} moves"
        if not told:
            text += f"; the engine does not know it yet: {self._publisher.state.error}"
        done = Helped(
            job=job.name,
            text=text,
            moves=len(moves),
            transaction=tx.id,
            plan_s=round(plan_s, 6),
            light_s=round(light_s, 6),
            publish_s=round(publish_s, 6),
            at=self._state.clock(),
        )
        self._keep(done)
        self._state.events.add("info", f"job/{job.name}", "RoomMade", text)
        await self._answer(job, Verdict.GO, text)
        return done

    def _first(self) -> JobRecord | None:
        """Return the first job of the queue that light may help; None without one."""
        waiting = [
            job
            for job in self._state.jobs.values()
            if job.state == "waiting" and job.observed is not None and job.observed.curable
        ]
        return min(waiting, key=_place_in_queue, default=None)

    def _note(self, job: JobRecord, text: str) -> None:
        known = self.latest.get(job.name)
        if known is None or known.text != text:
            self._keep(Helped(job=job.name, text=text, at=self._state.clock()))

    def _keep(self, helped: Helped) -> None:
        self.latest.pop(helped.job, None)
        self.latest[helped.job] = helped
        while len(self.latest) > KEPT:
            del self.latest[next(iter(self.latest))]

    async def _answer(self, job: JobRecord, verdict: Verdict, text: str) -> None:
        if job.observed is None:
            return
        try:
            await self._observed.answer(job.observed.key, verdict, text)
        except ObservedError as error:
            log.warning("owner_not_told", job=job.name, error=str(error))


def _place_in_queue(job: JobRecord) -> tuple[int, float]:
    return (job.observed.ahead if job.observed else 0, job.submitted_at)
