"""Brings a job back that has lost hardware: spares take the places of its dead endpoints.

In order: decide (journaled, the spares reserved), fence the dead endpoints by their flows, then at
the same time stop the ranks, move the light and fetch what the new run needs; then the new
endpoints and the new epoch in one commit, and the start. Each step is done again, or found done,
after a restart of the controller. What cannot be done sends the job back to the queue, loudly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from checkpoints.values import Place
from controller.base import failpoints
from controller.base.errors import ServiceError
from controller.base.tasks import Tasks
from controller.devices.engine import EngineError, ExecutionEngine
from controller.devices.errors import DEVICE_ERRORS
from controller.fabric.intent import FabricIntent
from controller.fabric.mover import Mover
from controller.ranks.ends import JobEnder
from controller.ranks.starter import ImagePreparer, RankStarter
from controller.state.intend import keys
from controller.state.jobs import Handled
from controller.state.kept.kinds import row_of
from controller.state.kinds.kind import Key
from controller.state.records import JobRecord, Quarantine
from controller.state.state import State
from controller.swaps import choice
from controller.swaps.choice import SwapPlan
from controller.swaps.contract import JobCheckpoints, JobLoss, Requeuer
from controller.swaps.rows import Rows
from controller.swaps.spares import Spares
from controller.transaction.model import Cause, Outcome, Transaction
from scheduler.model import OnLoss

log = structlog.get_logger(__name__)

ROUNDS = 3
"""How often it is decided again, after a spare or another server turned out to be lost as well."""
STOP_LIMIT_S = 15.0
"""For the ranks of a server to end without grace; a server without an answer counts as silent."""
FENCE_LIMIT_S = 3.0
PREFETCH_LIMIT_S = 600.0
WRITE_AGAIN_S = 0.5
DOING = "is being recovered"


class _UnwantedError(Exception):
    """The job is being cancelled, or is another one now."""


@dataclass(slots=True)
class _Work:
    """One recovery under way."""

    job: str
    submitted_at: float
    loss: JobLoss
    row: str
    """Its record."""
    excluded: set[str] = field(default_factory=set)
    """Spares whose light failed."""
    silent: set[str] = field(default_factory=set)
    """Servers that did not confirm that the job's ranks have ended."""
    resumed: bool = False
    """It was begun by an earlier controller."""


class Swapper:
    """Recovers jobs, each in a task of its own; the job is reserved for it meanwhile."""

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
        images: ImagePreparer,
        checkpoints: JobCheckpoints,
        rows: Rows,
        spares: Spares,
        queue: Requeuer,
    ) -> None:
        self._state = state
        self._engine = engine
        self._tasks = tasks
        self._mover = mover
        self._intent = intent
        self._starter = starter
        self._ender = ender
        self._images = images
        self._checkpoints = checkpoints
        self._rows = rows
        self._spares = spares
        self._queue = queue
        self._works: dict[str, _Work] = {}

    # --- what begins it -------------------------------------------------------------------

    def takes(self, job: JobRecord) -> bool:
        """Whether lost hardware is not the end of a job.

        It has a checkpoint or spares of its own, or it may be restarted from 0.
        """
        asked = job.request
        return asked.checkpoint is not None or asked.spares > 0 or asked.restart != "never"

    def lose(self, name: str, loss: JobLoss, *, stopped: bool = False) -> bool:
        """Begin to recover a job that lost ``loss.dead``; return whether that is done here.

        A job that is not to go on after a loss is left to its policy. A loss during a recovery
        joins it. ``stopped``: its ranks have ended or are being started, and the caller hands it
        over.
        """
        state = self._state
        job = state.jobs.get(name)
        if job is None or not job.holding or not job.owner.starts or self._ender.is_ending(name):
            return False
        if (work := self._works.get(name)) is not None:
            work.loss = _joined(work.loss, loss)
            return True
        if job.state not in ("running", "paused") and not stopped:
            return False  # it is being started: that sees for itself
        if not self.takes(job):
            return False
        if name in state.jobs.handled or state.transactions.of_job(name) is not None:
            return True  # it is looked at again within a second
        record = self._rows.begin(job, loss, "swap" if loss.dead else "again")
        self._checkpoints.ended(name, "stopped" if loss.cause == "drain" else "unfit")
        state.jobs.change(name, state="starting", reason=f"{_what(loss)}; {DOING}")
        if loss.cause == "drain":
            state.events.add("info", f"job/{name}", "JobLeaves", _what(loss))
        else:
            state.events.add("error", f"job/{name}", "HardwareLost", _what(loss))
        self._begin(_Work(name, job.submitted_at, loss, record.id))
        return True

    def resume(self) -> None:
        """Go on with what the controller before this one had begun; call it once, at the start."""
        state = self._state
        self._rows.resume()
        for record in list(state.recoveries.values()):
            job = state.jobs.get(record.job)
            if not record.open:
                continue
            if job is None or job.submitted_at != record.submitted_at or job.ended:
                self._rows.end(record.id)
                state.journal.owe(*self._rows.writes(record.id))
            elif job.state == "pending":
                state.recoveries.change(record.id, how="queue", stage="started")
                state.journal.owe(*self._rows.writes(record.id))
            elif job.state == "starting" and record.cause != "program" and record.how != "queue":
                reasons = dict.fromkeys(record.dead, "lost before the controller restarted")
                loss = JobLoss(
                    cause=record.cause,
                    objects=record.objects,
                    dead=reasons,
                    failed_at=record.failed_at,
                    healthy=record.cause in ("aggregator", "drain"),
                )
                state.jobs.halted.add(job.name)
                self._begin(_Work(job.name, job.submitted_at, loss, record.id, resumed=True))

    def has(self, name: str) -> bool:
        """Whether a job is being recovered here."""
        return name in self._works

    def _begin(self, work: _Work) -> None:
        self._works[work.job] = work
        self._tasks.spawn(self._recover(work), f"recover {work.job}")

    async def _recover(self, work: _Work) -> None:
        state, name = self._state, work.job
        handled = Handled(DOING)
        try:
            if work.resumed:
                await self._interrupted_ended(work)
            state.jobs.handled[name] = handled
            state.jobs.halted.discard(name)
            try:
                await self._go_on(work)
            except ServiceError as error:
                await self._fall_back(work, error.message)
        except _UnwantedError:
            self._rows.end(work.row, how="ended", why="the job was cancelled meanwhile")
            state.journal.owe(*self._rows.writes(work.row))
        finally:
            del self._works[name]
            state.jobs.halted.discard(name)
            if state.jobs.handled.get(name) is handled:
                del state.jobs.handled[name]
            handled.over.set()
            state.jobs.wake.set()

    async def _interrupted_ended(self, work: _Work) -> None:
        """Wait until no transaction of an earlier controller holds light: it may be ours."""
        while self._state.transactions.interrupted:
            self._require_wanted(work)
            await asyncio.sleep(WRITE_AGAIN_S)

    # --- the recovery ---------------------------------------------------------------------

    async def _go_on(self, work: _Work) -> None:
        why = ""
        for _ in range(ROUNDS):
            job = self._wanted(work)
            plan, why = await self._decide(work, job)
            if plan is None:
                break
            if not await self._decided(work, job, plan):
                continue  # a spare was taken meanwhile
            fenced = await self._fence(work, job)
            lit, _, _ = await asyncio.gather(
                self._light(work, plan, fenced), self._stop(work), self._fetch(work, plan)
            )
            self._require_wanted(work)
            if lost := self._also_lost(work, plan):
                work.loss = _joined(work.loss, lost)
                why = "other servers are lost as well"
                continue
            if lit:
                why = lit
                continue
            if await self._begin_run(work, plan):
                return
            why = "its containers did not start"
        await self._fall_back(work, why)

    async def _decide(self, work: _Work, job: JobRecord) -> tuple[SwapPlan | None, str]:
        """Return how the job goes on; None and the reason when it cannot."""
        state, loss = self._state, work.loss
        dead = [e for e in job.endpoints if e in loss.dead]
        if not dead:
            return SwapPlan(job.endpoints, state.recoveries[work.row].how), ""
        fabric = state.fabric(ours=True)
        lost = self._lost()
        ocs = {e.name: e.fiber.device for e in state.site.endpoints}
        optical = {name: switch for name, switch in ocs.items() if switch in state.optical}
        if loss.healthy and loss.cause == "aggregator":
            homes = choice.elsewhere(fabric, job.endpoints, dead, lost)
            if homes is not None:
                return SwapPlan(job.endpoints, "again", moves=dict(homes)), ""
        spares = self._spares.usable(job, work.excluded)
        restore = await self._checkpoints.planned(job.name, job.endpoints)
        ledger = self._checkpoints.ledger(job.name)
        if restore.key is not None:
            state.recoveries.change(work.row, step_restored=restore.key.step)
        servers = {name for name, answers in state.connections.servers().items() if answers}
        swaps, moves = await asyncio.to_thread(
            choice.by_spares,
            fabric,
            job.endpoints,
            dead,
            spares,
            record=ledger.steps.get(restore.key) if ledger and restore.key else None,
            places=self._places(fabric.homes),
            servers=servers,
            lost=lost,
        )
        left = [e for e in dead if e not in swaps]
        if not loss.healthy:
            moves = {**choice.darkened(dead, fabric.homes, optical, lost), **moves}
        endpoints = tuple(swaps.get(e, e) for e in job.endpoints if e not in left)
        if not left:
            return SwapPlan(endpoints, "swap", swaps, moves), ""
        why = self._why_not(work, spares, left)
        if job.request.on_loss is OnLoss.SHRINK:
            refusal = await self._cannot_shrink(job, endpoints)
            if not refusal:
                return SwapPlan(endpoints, "shrink", swaps, moves, why), ""
            why = f"{why}; {refusal}"
        return None, why

    async def _cannot_shrink(self, job: JobRecord, endpoints: Sequence[str]) -> str:
        ranks = len(endpoints)
        if ranks < max(1, job.request.at_least):
            return f"{ranks} ranks are left and it needs {max(1, job.request.at_least)}"
        restore = await self._checkpoints.planned(job.name, endpoints)
        return f"it cannot go on with {ranks} ranks: {restore.why}" if restore.key is None else ""

    def _why_not(self, work: _Work, spares: Collection[str], left: Collection[str]) -> str:
        what = "no port is free for a spare" if spares else "no spare is left"
        if work.excluded:
            what = f"the light of {', '.join(sorted(work.excluded))} failed and {what}"
        return f"{what} in the place of {', '.join(left)}"

    async def _decided(self, work: _Work, job: JobRecord, plan: SwapPlan) -> bool:
        """Reserve the spares and make the decision durable; False when one was taken meanwhile."""
        state = self._state
        now = self._wanted(work)
        if not set(plan.swaps.values()) <= set(self._spares.usable(now, work.excluded)):
            return False
        spares = tuple(dict.fromkeys((*now.spares, *plan.swaps.values())))
        before = state.recoveries[work.row]
        state.jobs.change(job.name, state="starting", spares=spares)
        state.recoveries.change(
            work.row,
            cause=work.loss.cause,
            objects=work.loss.objects,
            dead=tuple(dict.fromkeys((*before.dead, *work.loss.dead))),
            how=plan.how,
            swaps={**before.swaps, **plan.swaps},
            why=plan.why,
        )
        entries = self._quarantined(work.loss, now.endpoints)
        async with failpoints.around("swap-decide"):
            await self._durable(work, keys.job(job.name), *map(row_of, entries))
        self._require_wanted(work)
        if plan.swaps:
            text = ", ".join(f"{spare} for {dead}" for dead, spare in plan.swaps.items())
            state.events.add("info", f"job/{job.name}", "SpareChosen", text)
        return True

    async def _fence(self, work: _Work, job: JobRecord) -> bool:
        """Drop the dead endpoints' traffic: their containers may live. False: not confirmed."""
        dead = [e for e in job.endpoints if e in work.loss.dead]
        fenced = True
        try:
            async with failpoints.around("swap-fence"), asyncio.timeout(FENCE_LIMIT_S):
                await self._intent.hold(dict.fromkeys(dead))
        except (ServiceError, TimeoutError) as error:
            log.warning("fence_not_confirmed", job=job.name, error=str(error))
            fenced = False
        self._rows.mark(work.row, "decided")
        return fenced

    async def _stop(self, work: _Work) -> None:
        """End all ranks without grace, on the servers that answer, at the same time."""
        job, state = self._state.jobs[work.job], self._state
        servers = {
            cable.server for e in job.endpoints if (cable := state.cables.get(e)) is not None
        }
        async with failpoints.around("swap-stop"):
            await self._stopped(work, servers)
        self._rows.mark(work.row, "stopped")

    async def _stopped(self, work: _Work, servers: Iterable[str]) -> None:
        answering, epoch = self._state.connections.servers(), self._state.jobs[work.job].epoch
        silent = {name for name in servers if not answering.get(name, False)}
        asked = sorted(set(servers) - silent)

        async def one(server: str) -> None:
            try:
                async with asyncio.timeout(STOP_LIMIT_S):
                    await self._engine.stop(work.job, 0.0, [server], until=epoch)
            except (EngineError, OSError, TimeoutError) as error:
                log.warning("not_stopped", job=work.job, server=server, error=str(error))
                silent.add(server)

        await asyncio.gather(*(one(server) for server in asked))
        work.silent = silent

    async def _light(self, work: _Work, plan: SwapPlan, fenced: bool) -> str:
        """Move the light; return why that failed. A dead endpoint goes dark and stays dark."""
        if not plan.moves:
            self._rows.mark(work.row, "lit")
            return "" if fenced else self._unfenced(work)
        try:
            async with failpoints.around("swap-light"):
                running = self._mover.begin(Cause.SPARE, plan.moves, stopped=work.job)
                tx = await self._mover.carry_out(running)
        except ServiceError as error:
            return f"the light cannot be moved: {error.message}"
        if tx.outcome is not Outcome.COMMITTED:
            work.excluded |= _blamed(tx, plan)
            return f"the light could not be moved: {'; '.join(tx.reasons)}"
        self._rows.mark(work.row, "lit")
        dead = [e for e in work.loss.dead if e in self._state.light.attachments]
        return "" if fenced or not dead else self._unfenced(work)

    def _unfenced(self, work: _Work) -> str:
        """Say whether a dead endpoint may still send: neither its flows nor its light are cut.

        Only a rank that may live matters: where all have ended, nothing sends.
        """
        state, answering = self._state, self._state.connections.servers()
        for name in work.loss.dead:
            cable, at = state.cables.get(name), state.light.attachments.get(name)
            if cable is None or at is None or at.aggregator in state.light.lost:
                continue
            if not answering.get(cable.server, False):
                return f"{name} cannot be fenced: neither its flows nor its light can be cut"
        return ""

    async def _fetch(self, work: _Work, plan: SwapPlan) -> None:
        """Fetch image and checkpoint beside the rest; the start fetches what is missing then."""
        try:
            async with failpoints.around("swap-fetch"), asyncio.timeout(PREFETCH_LIMIT_S):
                _, restore = await asyncio.gather(
                    self._images.ready(work.job, plan.endpoints),
                    self._checkpoints.prefetch(work.job, plan.endpoints),
                )
            if restore.key is not None:  # after a restart, more is known than at the decision
                self._state.recoveries.change(work.row, step_restored=restore.key.step)
        except (ServiceError, *DEVICE_ERRORS) as error:
            log.warning("not_prefetched", job=work.job, error=str(error))
        self._rows.mark(work.row, "fetched")

    def _also_lost(self, work: _Work, plan: SwapPlan) -> JobLoss | None:
        """Return the endpoints of the new run whose server did not confirm the stop."""
        cables = self._state.cables
        dead = {
            e: f"server {cables[e].server} does not answer"
            for e in plan.endpoints
            if e in cables and cables[e].server in work.silent
        }
        if not dead:
            return None
        objects = tuple(sorted({f"server/{cables[e].server}" for e in dead}))
        return replace(work.loss, cause="server", objects=objects, dead=dead, healthy=False)

    async def _begin_run(self, work: _Work, plan: SwapPlan) -> bool:
        """Make the new endpoints and the new epoch durable, then start the ranks."""
        state, name = self._state, work.job
        await state.reports.wait()
        job = self._wanted(work)
        gone = [e for e in job.endpoints if e not in plan.endpoints]
        self._leave(work, job)
        state.next_epoch()
        used = set(plan.swaps.values())
        state.jobs.change(
            name,
            endpoints=plan.endpoints,
            spares=tuple(e for e in job.spares if e not in used and e not in work.excluded),
            epoch=state.epoch,
            restarts=job.restarts + 1,
            exit_codes=(None,) * len(plan.endpoints),
            reason="its containers are starting",
        )
        state.recoveries.change(work.row, stage="started")
        async with failpoints.around("swap-epoch"):
            await self._durable(work, keys.job(name))
        self._require_wanted(work)
        text = f"{plan.why}; it goes on with {len(plan.endpoints)} ranks" if plan.why else ""
        if plan.how == "shrink":
            state.events.add("warning", f"job/{name}", "JobShrunk", text)
        try:
            with_light = state.light.aggregators_of(plan.endpoints)
            await self._intent.let_go(gone)
            await self._intent.converge(with_light)
            await self._starter.start(name)
        except (ServiceError, *DEVICE_ERRORS) as error:
            log.warning("recovered_run_not_started", job=name, error=str(error))
            self._require_wanted(work)
            await self._fall_back(work, f"its containers did not start: {error or 'time-out'}")
            return True
        self._rows.mark(work.row, "started")
        state.journal.owe(*self._rows.writes(work.row))
        what = ", ".join(f"{spare} took the place of {dead}" for dead, spare in plan.swaps.items())
        state.events.add("info", f"job/{name}", "JobRecovered", what or "it starts again")
        self._spares.replace(name)
        return True

    def _quarantined(self, loss: JobLoss, endpoints: Iterable[str]) -> tuple[Quarantine, ...]:
        """Put those that are dead themselves out of use, until an operator releases them.

        Those of a lost server come back with it.
        """
        state = self._state
        entries = tuple(
            Quarantine(e, loss.dead[e], state.clock())
            for e in endpoints
            if e in loss.dead
            and e not in state.light.quarantine
            and (loss.cause == "endpoint" or e in state.light.unfit)
        )
        for entry in entries:
            state.light.quarantine.put(entry)
            state.events.add("error", f"endpoint/{entry.object}", "Quarantined", entry.reason)
        return entries

    def _leave(self, work: _Work, job: JobRecord) -> None:
        """Remember the endpoints on which ranks of the lost run may live."""
        cables = self._state.cables
        there = [e for e in job.endpoints if e in cables and cables[e].server in work.silent]
        self._state.drains.leave(job.name, job.epoch, there)
        self._engine.leave(job.name, work.silent)

    # --- the fall-back --------------------------------------------------------------------

    async def _fall_back(self, work: _Work, why: str) -> None:
        """Stop the job and put it back into the queue: it is placed again and goes on there."""
        state, name = self._state, work.job
        job = self._wanted(work)
        state.events.add("warning", f"job/{name}", "SwapImpossible", why)
        servers = {
            cable.server for e in job.endpoints if (cable := state.cables.get(e)) is not None
        }
        await self._stopped(work, servers)
        self._require_wanted(work)
        self._leave(work, job)
        entries = self._quarantined(work.loss, job.endpoints)
        state.recoveries.change(work.row, how="queue", why=why, stage="started")
        state.journal.owe(*map(row_of, entries), *self._rows.writes(work.row))
        held = [e for e in work.loss.dead if e in state.light.held]
        reason = f"back in the queue: {_what(work.loss)}; {why}"
        await self._queue.back_to_queue(name, reason)
        try:
            await self._intent.let_go(held)
        except ServiceError as error:  # the drift watch converges the aggregators again
            log.error("flows_of_lost_endpoints_stay", job=name, error=error.message)

    # --- helpers --------------------------------------------------------------------------

    def _wanted(self, work: _Work) -> JobRecord:
        self._require_wanted(work)
        return self._state.jobs[work.job]

    def _require_wanted(self, work: _Work) -> None:
        """Stop here for a job that is being cancelled; its end stops what runs."""
        job, state = self._state.jobs.get(work.job), self._state
        state.require_command()
        if (
            job is None
            or job.submitted_at != work.submitted_at
            or not job.holding
            or work.job in state.jobs.unwanted
            or self._ender.is_ending(work.job)
        ):
            raise _UnwantedError

    async def _durable(self, work: _Work, *rows: Key) -> None:
        """Write with the row and the counters; wait until the store has it: nothing acts before."""
        while True:
            try:
                await self._state.record(*rows, *self._rows.writes(work.row), keys.FACTS)
            except ServiceError:
                self._require_wanted(work)
                await asyncio.sleep(WRITE_AGAIN_S)
                self._require_wanted(work)
            else:
                return

    def _lost(self) -> frozenset[str]:
        """Return the aggregators and switches on which no light can be moved."""
        state = self._state
        aggregators = {a.name for a in state.site.aggregators}
        away = aggregators - state.connections.aggregators()
        drained = {d.name for d in state.drains.of.values() if d.kind != "node"}
        switches = state.optical - state.connections.switches()
        return frozenset(away | switches | drained | state.light.lost)

    def _places(self, homes: Mapping[str, str | None]) -> dict[str, Place]:
        return {
            e.name: Place(e.name, e.server, homes.get(e.name) or "")
            for e in self._state.site.endpoints
        }


def _joined(one: JobLoss, other: JobLoss) -> JobLoss:
    """Return two losses of one job as one; the later cause names it."""
    return replace(
        one,
        cause=other.cause,
        objects=tuple(dict.fromkeys((*one.objects, *other.objects))),
        dead={**one.dead, **other.dead},
        healthy=one.healthy and other.healthy,
    )


def _blamed(tx: Transaction, plan: SwapPlan) -> set[str]:
    """Return the spares whose light failed; all of them where that is not known."""
    failed = {p.endpoint for p in tx.paths if p.after is not None and p.after in tx.suspects}
    spares = set(plan.swaps.values())
    return failed & spares or spares


def _what(loss: JobLoss) -> str:
    first = next(iter(loss.dead.values()), "")
    names = ", ".join(loss.dead)
    return f"{names}: {first}" if first else f"{', '.join(loss.objects)} is lost"
