"""Carries plans out in batches, each in one transaction, also across restarts.

A rollout is durable before its first batch begins. A batch begins when the one before has
committed, and only if its jobs still hold their endpoints and every endpoint is where the plan has
it. Otherwise the rollout stops: what is done stays, and a new plan goes on from there. After a
restart the homes of a batch's endpoints show whether it was carried out.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Literal

import structlog

from controller.base.errors import ServiceError
from controller.base.tasks import Tasks
from controller.fabric.mover import Mover
from controller.plans.batching import limits_of, moves_of, no_order
from controller.plans.planner import Planner
from controller.schema.plans import PlanView, RolloutRequest, RolloutView
from controller.state.intend import keys
from controller.state.intend.intentions import Make, constant
from controller.state.kept.kinds import row_of
from controller.state.kept.rollouts import ROLLOUTS, RolloutRecord, RolloutState
from controller.state.kinds.kind import Key
from controller.state.records import JobRecord, MoveRecord
from controller.state.state import State
from controller.state.transactions import RunningTransaction
from controller.transaction.model import Cause, Outcome
from scheduler.regroup.batches import BatchError, Batches

log = structlog.get_logger(__name__)

BEGIN_S = 60.0
"""For how long a batch waits to begin while devices do not answer, or a job of it is starting."""
AGAIN_S = 0.5
ATTEMPTS = 3
"""How often a batch is begun that restarts of the controller interrupt."""

Place = Literal["before", "after", "between"]


class _StoppedError(Exception):
    """No further batch begins; the text is the reason."""


class RolloutDesk:
    """Begins rollouts, carries them out, and shows them. Raises ServiceError, nothing else."""

    def __init__(self, state: State, planner: Planner, mover: Mover, tasks: Tasks) -> None:
        self._state = state
        self._planner = planner
        self._mover = mover
        self._tasks = tasks
        self._asked: dict[str, asyncio.Event] = {}
        """Per rollout under way: set once an operator's order to stop is durable."""

    @property
    def busy(self) -> bool:
        """Whether one is under way."""
        return self._state.rollouts.under_way is not None

    async def begin(self, request: RolloutRequest) -> RolloutView:
        """Cut a plan into batches, make that durable, and begin with the first one."""
        state, planner = self._state, self._planner
        plan = planner.checked(request.plan)
        what = f"plan/{plan.id}"
        self._require_alone()
        limits = limits_of(request, state.site.scheduling.regroup, plan.batches)
        if limits is None:
            raise ServiceError(
                "invalid",
                "it says nowhere how many endpoints may be dark at once",
                object=what,
                hint="give --max-dark N, or set regroup.max_dark in the site file",
            )
        try:
            found = await planner.cut(state.fabric(), moves_of(plan), limits)
        except BatchError as error:
            raise no_order(error, what) from None
        if not found.pauses:
            hint = "it moves idle endpoints only: apply it without --max-dark"
            raise ServiceError("invalid", "the plan moves no job", object=what, hint=hint)
        moves = {move.endpoint: move.target for move in plan.moves}
        rewiring = await self._mover.foreseen(moves)
        plan = planner.checked(plan)  # the fabric may have changed while the order was sought
        self._require_alone()
        if request.max_pauses is None:  # else the operator allows them now
            self._require_stated(plan, found)
        self._mover.require_tolerated(self._mover.dark_time_checks(rewiring))
        promised = frozenset[str]()
        if plan.makes_room_for is not None:
            promised = planner.room(plan, moves, plan.makes_room_for)
        holders = state.jobs.holders()
        owners = {
            move.endpoint: job.name
            for batch in found.batches
            for move in batch
            if (job := holders.get(move.endpoint)) is not None
        }
        record = RolloutRecord(
            id=state.rollouts.next_key(),
            plan_id=plan.id,
            batches=tuple(
                tuple(MoveRecord(m.endpoint, m.source, m.target) for m in batch)
                for batch in found.batches
            ),
            total=len(found.batches),
            least=found.least,
            max_dark=limits.max_dark,
            max_pauses=limits.max_pauses,
            park=limits.park,
            pauses=dict(found.pauses),
            owners=owners,
            jobs={job.name: job.submitted_at for e in owners if (job := holders.get(e))},
            room_for=plan.makes_room_for,
            room=tuple(sorted(promised)),
            started_at=state.clock(),
        )
        self._reserve(record)
        try:
            await state.intend({row_of(record): constant(record)}, keys.FACTS, visible=True)
        except BaseException:
            self._free(record)
            raise
        text = f"plan {plan.id} in {record.total} batches of at most {record.max_dark} endpoints"
        state.events.add("info", f"rollout/{record.id}", "RolloutStarted", text)
        planner.applied(moves)
        self._start(record.id)
        return rollout_view(record)

    def resume(self, recovered: asyncio.Event) -> None:
        """Go on with the one that a restart has interrupted, once its transaction is closed."""
        record = self._state.rollouts.under_way
        if record is not None:
            self._reserve(record)
            self._start(record.id, recovered)

    async def abort(self, ident: str) -> RolloutView:
        """Let no further batch begin; the one under way ends by itself."""
        self._get(ident)

        def aborted(record: RolloutRecord | None) -> RolloutRecord:
            if record is None or record.state != "running":
                raise ServiceError(
                    "conflict",
                    f"rollout {ident} is {'forgotten' if record is None else record.state}",
                    object=f"rollout/{ident}",
                    hint="make a plan that moves the light back",
                )
            return replace(record, abort=True)

        await self._state.intend({ROLLOUTS.row(ident): aborted})
        if ident in self._asked:
            self._asked[ident].set()
        return self.rollout(ident)

    def rollout(self, ident: str) -> RolloutView:
        """Return one. ServiceError ``not_found``."""
        return rollout_view(self._get(ident))

    def rollouts(self) -> list[RolloutView]:
        """Return those that are kept, oldest first."""
        return [rollout_view(record) for record in self._state.rollouts.values()]

    def _get(self, ident: str) -> RolloutRecord:
        record = self._state.rollouts.get(ident)
        if record is None:
            raise ServiceError(
                "not_found",
                f"rollout {ident} does not exist",
                object=f"rollout/{ident}",
                hint="see `lightloom get rollouts`",
            )
        return record

    def _require_alone(self) -> None:
        other = self._state.rollouts.under_way
        if other is not None:
            raise ServiceError(
                "conflict",
                f"rollout {other.id} is under way: batch {other.done + 1} of {other.total}",
                object=f"rollout/{other.id}",
                hint=f"wait for its end, or stop it: lightloom abort {other.id}",
            )

    @staticmethod
    def _require_stated(plan: PlanView, found: Batches) -> None:
        """Refuse more pauses than the plan has. ServiceError ``conflict``."""
        if plan.batches is None or plan.batches.refused:
            return
        for job, pauses in found.pauses.items():
            if pauses > plan.batches.pauses.get(job, 1):
                raise ServiceError(
                    "conflict",
                    f"job {job} would be paused {pauses} times, the plan says"
                    f" {plan.batches.pauses.get(job, 1)}",
                    object=f"plan/{plan.id}",
                    hint=f"allow it with --max-pauses {pauses}, or make a new plan",
                )

    def _reserve(self, record: RolloutRecord) -> None:
        """Keep the queue away from idle endpoints that move, and from those of the waiting job."""
        reserved = self._state.jobs.promised
        reserved[f"rollout/{record.id}"] = record.idle
        if record.room_for is not None and record.room:
            reserved[record.room_for] = frozenset(record.room)

    def _free(self, record: RolloutRecord) -> None:
        promised = self._state.jobs.promised
        promised.pop(f"rollout/{record.id}", None)
        if record.room_for is not None:
            promised.pop(record.room_for, None)
        self._state.jobs.wake.set()

    def _start(self, ident: str, recovered: asyncio.Event | None = None) -> None:
        self._asked[ident] = asyncio.Event()
        if self._state.rollouts[ident].abort:
            self._asked[ident].set()
        self._tasks.spawn(self._to_its_end(ident, recovered), f"rollout {ident}")

    async def _to_its_end(self, ident: str, recovered: asyncio.Event | None) -> None:
        """Carry a rollout out; one that fails in an unexpected way is over, and blocks no other."""
        if recovered is not None:
            await recovered.wait()
        ended: RolloutState = "stopped"
        try:
            await self._carry_out(ident)
            ended, why = "committed", "every batch has committed"
        except _StoppedError as stopped:
            why = str(stopped)
        except Exception as error:
            log.exception("rollout_broke", rollout=ident)
            why = f"internal error: {error}"
        await self._over(self._state.rollouts[ident], ended, why)

    async def _carry_out(self, ident: str) -> None:
        """Carry out one batch after the other. Raises _StoppedError."""
        state = self._state
        while (record := state.rollouts[ident]).done < record.total:
            batch = record.batches[record.done]
            if self._place(batch) != "after":  # else it was carried out before a restart
                running = await self._begun(record, batch)
                tx = await self._mover.carry_out(running)
                if tx.ending is not Outcome.COMMITTED:
                    why = "; ".join(tx.reasons) or tx.ending
                    raise _StoppedError(f"transaction {tx.id} ended {tx.ending}: {why}")
            await self._next(state.rollouts[ident])

    def _place(self, batch: tuple[MoveRecord, ...]) -> Place:
        """Return whether the batch's endpoints are where it takes them, or where it finds them."""
        homes = self._state.light.homes()
        if all(homes.get(move.endpoint) == move.target for move in batch):
            return "after"
        if all(homes.get(move.endpoint) == move.source for move in batch):
            return "before"
        return "between"

    def _obstacle(self, record: RolloutRecord, batch: tuple[MoveRecord, ...]) -> str:
        """Return why a batch cannot begin any more; empty if it can."""
        homes, holders = self._state.light.homes(), self._state.jobs.holders()
        if self._asked[record.id].is_set():
            return "an operator stopped it"
        if self._place(batch) != "before":
            other = next(m for m in batch if homes.get(m.endpoint) != m.source)
            return f"{other.endpoint} is under {homes.get(other.endpoint) or 'no aggregator'} now"
        if record.attempts >= ATTEMPTS:
            return f"its batch was begun {ATTEMPTS} times, and the controller restarted each time"
        found = (self._changed(record, m.endpoint, holders.get(m.endpoint)) for m in batch)
        return next(filter(None, found), "")

    def _changed(self, record: RolloutRecord, endpoint: str, holder: JobRecord | None) -> str:
        """Return what has changed about an endpoint since the rollout began; empty for nothing."""
        owner = record.owners.get(endpoint)
        if owner is None and holder is not None:
            return f"{endpoint} was given to job {holder.name}"
        held = None if holder is None else (holder.name, holder.submitted_at)
        if owner is not None and held != (owner, record.jobs[owner]):
            return f"job {owner} no longer holds {endpoint}"
        quarantine = self._state.light.quarantine.get(endpoint)
        return "" if quarantine is None else f"{endpoint} is out of use: {quarantine.reason}"

    async def _begun(
        self, record: RolloutRecord, batch: tuple[MoveRecord, ...]
    ) -> RunningTransaction:
        """Begin a batch's transaction. Raises _StoppedError.

        It waits while devices do not answer, a job of it starts, or the store refuses.
        """
        state, ident = self._state, record.id
        moves = {move.endpoint: move.target for move in batch}
        deadline = asyncio.get_running_loop().time() + BEGIN_S
        while True:
            if obstacle := self._obstacle(record, batch):
                raise _StoppedError(obstacle)
            running: RunningTransaction | None = None
            try:
                running = self._mover.begin(Cause.REGROUP, moves, record.plan_id)
                await state.intend({ROLLOUTS.row(ident): _tried(running.tx.id)})
            except ServiceError as error:
                why = error.message
                if running is not None:
                    self._mover.call_off(running, why)
            else:
                return running
            if asyncio.get_running_loop().time() > deadline:
                raise _StoppedError(f"its next batch could not begin within {BEGIN_S:g} s: {why}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._asked[ident].wait()

    async def _next(self, record: RolloutRecord) -> None:
        state = self._state
        record = state.rollouts.change(record.id, done=record.done + 1, attempts=0)
        self._reserve(record)
        await self._recorded(row_of(record))

    async def _over(self, record: RolloutRecord, ended: RolloutState, why: str) -> None:
        """End a rollout; its batches are forgotten."""
        state = self._state
        done = f"{record.done} of {record.total} batches have committed"
        record = state.rollouts.change(
            record.id,
            state=ended,
            batches=(),
            owners={},
            room=(),
            finished_at=state.clock(),
            result=why if ended == "committed" else f"{why}; {done}",
        )
        self._asked.pop(record.id, None)
        self._free(record)
        severity, reason = ("info", "RolloutCommitted")
        if ended == "stopped":
            severity, reason = ("warning", "RolloutStopped")
        state.events.add(severity, f"rollout/{record.id}", reason, record.result)  # type: ignore[arg-type]
        gone = state.rollouts.surplus()
        for ident in gone:
            state.rollouts.remove(ident)
        forgotten = (ROLLOUTS.row(ident) for ident in gone)
        await self._recorded(row_of(record), *forgotten)

    async def _recorded(self, *rows: Key) -> None:
        """Write what has happened; without a store it stays owed, and homes show the rest."""
        with contextlib.suppress(ServiceError):
            await self._state.record(*rows)


def _tried(transaction: str) -> Make:
    """Return what makes a rollout one that begins its batch with a transaction."""

    def tried(record: RolloutRecord) -> RolloutRecord:
        transactions = (*record.transactions, transaction)
        return replace(record, transactions=transactions, attempts=record.attempts + 1)

    return tried


def rollout_view(record: RolloutRecord) -> RolloutView:
    """Return the document of a rollout."""
    stopping = record.state == "running" and record.abort
    return RolloutView(
        id=record.id,
        plan_id=record.plan_id,
        state="stopping" if stopping else record.state,
        batches=record.total,
        least=record.least,
        done=record.done,
        max_dark=record.max_dark,
        max_pauses=record.max_pauses,
        park=record.park,
        pauses=dict(record.pauses),
        transactions=list(record.transactions),
        makes_room_for=record.room_for,
        started_at=record.started_at,
        finished_at=record.finished_at,
        result=record.result,
    )
