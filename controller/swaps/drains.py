"""Takes servers, aggregators and switches out of use on purpose, without losing a protected step.

Nothing new is placed on a draining object. Its jobs leave when that costs least: light moves to
other aggregators while a job runs; a job with checkpoints goes once its next step is protected;
one that may be restarted goes to the queue; any other is waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from controller.base.errors import ServiceError
from controller.base.tasks import Tasks
from controller.fabric.mover import Mover
from controller.ranks.ends import JobEnder
from controller.schema.checkpoints import DrainKind, DrainView
from controller.state.intend.keys import DRAINS
from controller.state.kept.drains import WORDS, DrainDecisions, DrainedObject
from controller.state.records import JobRecord
from controller.state.state import State
from controller.swaps import choice
from controller.swaps.contract import JobLoss, Requeuer
from controller.swaps.progress import StepProgress
from controller.swaps.relight import Relighter
from controller.swaps.spares import Spares
from controller.swaps.swapper import Swapper
from controller.transaction.model import Cause, Outcome

WAIT_S = 600.0
"""For the next protected step of a job whose interval is not known."""
LONGEST_WAIT_S = 6 * 3600.0
INTERVALS = 2.0
MOVE_AGAIN_S = 30.0
"""Between two attempts to move a running job's light."""


class DrainKeeper:
    """Begins, ends and lists drains, and moves their jobs; look about once a second."""

    def __init__(
        self,
        state: State,
        tasks: Tasks,
        *,
        mover: Mover,
        swapper: Swapper,
        spares: Spares,
        relighter: Relighter,
        ender: JobEnder,
        queue: Requeuer,
        progress: StepProgress,
    ) -> None:
        self._state = state
        self._tasks = tasks
        self._mover = mover
        self._swapper = swapper
        self._spares = spares
        self._relighter = relighter
        self._ender = ender
        self._queue = queue
        self._progress = progress
        self._moved_at: dict[str, float] = {}
        """By job: when its light was to be moved last."""
        self._told: set[tuple[str, str]] = set()
        """Drains and jobs whose wait was reported."""
        self._done: set[str] = set()
        """Drained objects that were reported."""

    # --- operations -----------------------------------------------------------------------

    async def drain(self, kind: DrainKind, name: str, *, now: bool = False) -> DrainView:
        """Begin to take an object out of use. ServiceError ``not_found``.

        With ``now`` its jobs wait for no checkpoint, and those that cannot start elsewhere end.
        """
        state = self._state
        state.require_command()
        self._require_known(kind, name)
        asked = DrainedObject(kind, name, state.clock(), now)
        before = state.drains.of.get(asked.object)

        def drained(done: DrainDecisions) -> DrainDecisions:
            known = done.of.get(asked.object)
            drain = asked if known is None else replace(known, now=now or known.now)
            return replace(done, of={**done.of, drain.object: drain})

        await state.intend({DRAINS: drained})
        drain = state.drains.of.get(asked.object, asked)
        if before is None:
            state.events.add("info", drain.object, "DrainStarted", "nothing new is placed on it")
        state.jobs.wake.set()
        return self._view(drain)

    async def undrain(self, kind: DrainKind, name: str) -> DrainView:
        """Put an object back into use. ServiceError ``not_found``."""
        state = self._state
        drain = self._known(state.drains.of, kind, name)
        view = self._view(drain)

        def undrained(done: DrainDecisions) -> DrainDecisions:
            self._known(done.of, kind, name)
            left = {object_: kept for object_, kept in done.of.items() if object_ != drain.object}
            return DrainDecisions(left, done.unlit | self._relighter.lightable(self._of(drain)))

        await state.intend({DRAINS: undrained})
        self._relighter.hurry()
        self._told = {(what, job) for what, job in self._told if what != drain.object}
        self._done.discard(drain.object)
        state.events.add("info", drain.object, "DrainEnded", "it is used again")
        state.jobs.wake.set()
        return view

    @staticmethod
    def _known(drains: Mapping[str, DrainedObject], kind: DrainKind, name: str) -> DrainedObject:
        """Return a drain. ServiceError ``not_found``."""
        drain = drains.get(f"{kind}/{name}")
        if drain is None:
            raise ServiceError(
                "not_found",
                f"{WORDS[kind]} {name} is not being drained",
                object=f"{kind}/{name}",
                hint="see `lightloom get drains`",
            )
        return drain

    def _of(self, drain: DrainedObject) -> list[str]:
        """Return the endpoints that are on an object, or at home under it."""
        site = self._state.site
        return [
            cable.name
            for cable in site.endpoints
            if drain.name
            == {
                "node": cable.server,
                "aggregator": site.homes.get(cable.name),
                "switch": cable.fiber.device,
            }[drain.kind]
        ]

    def views(self) -> list[DrainView]:
        """Return all drains, the oldest first."""
        drains = sorted(self._state.drains.of.values(), key=lambda drain: drain.since)
        return [self._view(drain) for drain in drains]

    def _view(self, drain: DrainedObject) -> DrainView:
        jobs = {job.name: self._waits_for(drain, job)[1] for job in self._users(drain)}
        return DrainView(
            object=drain.object,
            state="draining" if jobs else "drained",
            since=drain.since,
            jobs=jobs,
        )

    def _require_known(self, kind: DrainKind, name: str) -> None:
        site = self._state.site
        names = {
            "node": {server.name for server in site.servers},
            "aggregator": {aggregator.name for aggregator in site.aggregators},
            "switch": {switch.name for switch in site.switches},
        }
        if name not in names[kind]:
            raise ServiceError(
                "not_found",
                f"site {site.name} has no {WORDS[kind]} {name}",
                object=f"{kind}/{name}",
                hint=f"see `lightloom get {kind}{'es' if kind == 'switch' else 's'}`",
            )

    # --- the jobs -------------------------------------------------------------------------

    def check(self) -> None:
        """Let the jobs go whose time has come."""
        state = self._state
        if state.suspect or state.transactions.interrupted:
            return
        self._told = {(what, job) for what, job in self._told if job in state.jobs}
        self._moved_at = {job: at for job, at in self._moved_at.items() if job in state.jobs}
        for drain in list(state.drains.of.values()):
            users = self._users(drain)
            if not users and drain.object not in self._done:
                self._done.add(drain.object)
                state.events.add("info", drain.object, "Drained", "no job uses it")
            if users:
                self._done.discard(drain.object)
            for job in users:
                self._let_go(drain, job)

    def _let_go(self, drain: DrainedObject, job: JobRecord) -> None:
        state, name = self._state, job.name
        if job.state not in ("running", "paused"):
            return
        if self._ender.doing(name) or state.in_transaction(name) or self._moving(drain, job):
            return
        due, waits = self._waits_for(drain, job)
        if not due:
            if (drain.object, name) not in self._told:
                self._told.add((drain.object, name))
                state.events.add("info", f"job/{name}", "DrainWaits", f"{drain.why}: {waits}")
            return
        self._told.discard((drain.object, name))
        if not self._may_restart(job):  # only a drain that waits for nothing comes here
            text = f"{drain.why}, and it may not be restarted"
            self._ender.later(
                name, "failed", text, grace_s=job.request.limit_grace_s, ranks_failed=False
            )
        elif job.request.checkpoint is not None or self._spares.usable(job):
            self._swapper.lose(name, self._loss(drain, job))
        else:
            self._tasks.spawn(self._queue.requeue(name, drain.why), f"requeue {name}")

    def _moving(self, drain: DrainedObject, job: JobRecord) -> bool:
        """Begin to move a job's light away from an aggregator; False when that is not possible."""
        state, now = self._state, self._state.clock()
        last = self._moved_at.get(job.name)
        tried = last is not None and 0 <= now - last < MOVE_AGAIN_S
        if drain.kind != "aggregator" or tried or job.request.pinned:
            return False
        mine = [e for e in job.endpoints if e in self._endpoints(drain)]
        lost = {d.name for d in state.drains.of.values() if d.kind != "node"}
        lost |= {a.name for a in state.site.aggregators} - state.connections.aggregators()
        lost |= state.optical - state.connections.switches()
        homes = choice.elsewhere(state.fabric(), job.endpoints, mine, lost)
        if homes is None:
            return False
        self._moved_at[job.name] = now
        try:
            running = self._mover.begin(Cause.REGROUP, dict(homes))
        except ServiceError:
            return False

        async def carry_out() -> None:
            tx = await self._mover.carry_out(running)
            if tx.outcome is Outcome.COMMITTED:
                self._moved_at.pop(job.name, None)

        self._tasks.spawn(carry_out(), f"drain {drain.object} of {job.name}")
        return True

    def _waits_for(self, drain: DrainedObject, job: JobRecord) -> tuple[bool, str]:
        """Return whether a job is to leave now, and else what it waits for."""
        if not job.owner.stops:
            return False, f"{job.owner.engine}, which owns it, to end it"
        if self._swapper.has(job.name):
            return False, "its start elsewhere, which is under way"
        if drain.now or (job.request.checkpoint is None and self._may_restart(job)):
            return True, "its start elsewhere"
        if job.request.checkpoint is None:
            return False, "its end: it may not be restarted and has no checkpoints"
        usual_s = self._progress.interval_s(job.name)
        limit_s = min(LONGEST_WAIT_S, WAIT_S if usual_s is None else INTERVALS * usual_s)
        left_s = drain.since + limit_s - self._state.clock()
        if left_s <= 0 or self._progress.protected_after(job.name, drain.since):
            return True, "its start elsewhere"
        return False, f"its next protected checkpoint, for {left_s:.0f} s at most"

    def _may_restart(self, job: JobRecord) -> bool:
        return job.request.restart != "never" or job.request.checkpoint is not None

    def _users(self, drain: DrainedObject) -> list[JobRecord]:
        mine = self._endpoints(drain)
        return [
            job
            for job in self._state.jobs.values()
            if job.holding and not mine.isdisjoint(job.endpoints)
        ]

    def _endpoints(self, drain: DrainedObject) -> frozenset[str]:
        return frozenset(self._state.drains.endpoints(drain, self._state.light.attachments))

    def _loss(self, drain: DrainedObject, job: JobRecord) -> JobLoss:
        mine = self._endpoints(drain)
        return JobLoss(
            cause="drain",
            objects=(drain.object,),
            dead={e: drain.why for e in job.endpoints if e in mine},
            failed_at=self._state.clock(),
            healthy=True,
        )
