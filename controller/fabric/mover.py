"""Moves light: begins transactions, carries them out, and reports how they ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from base.clock import SteadyClock
from controller.base.errors import ServiceError
from controller.devices.aggregators import Aggregators, AttachPoint
from controller.devices.engine import ExecutionEngine
from controller.devices.switches import Switches
from controller.fabric.dark_time import predicted_dark_time_s
from controller.fabric.executor import Executor, JobOwners
from controller.fabric.intent import FabricIntent
from controller.fabric.link_times import LinkTimes
from controller.fabric.runner import run
from controller.ranks.ends import JobEnder
from controller.ranks.starter import RankStarter
from controller.ranks.tolerance import DarkTimeCheck, check_dark_time
from controller.state.records import JobRecord, TransactionRecord
from controller.state.state import State
from controller.state.transactions import (
    RunningTransaction,
    finished_reason,
    intent_of,
    quarantine_of,
    transaction_record,
)
from controller.state.writes import PutTransaction, ReservedRoom
from controller.transaction.circuits import (
    EndpointEnd,
    Rewiring,
    RewiringError,
    rewire,
    without_ports,
)
from controller.transaction.model import (
    Cause,
    HeldJob,
    Outcome,
    Path,
    Phase,
    Transaction,
)
from scheduler.model import Policy
from sitefile import CabledSite

log = structlog.get_logger(__name__)

FLUSH_AGAIN_S = 0.5
"""Between two attempts to write the end of a transaction, which is not announced before."""
FORESIGHTS = 3
"""Computations beside the loop, before one on it: the fabric may change during each."""


class Mover:
    """Carries out transactions, each of which moves light and pauses the jobs it touches."""

    def __init__(
        self,
        state: State,
        switches: Switches,
        aggregators: Aggregators,
        engine: ExecutionEngine,
        *,
        intent: FabricIntent,
        starter: RankStarter,
        ender: JobEnder,
    ) -> None:
        self._state = state
        self._switches = switches
        self._intent = intent
        self._ender = ender
        self.links = LinkTimes(state.site)
        self._executor = Executor(
            state,
            switches,
            aggregators,
            engine,
            intent=intent,
            starter=starter,
            links=self.links,
        )

    def report_to(self, owners: JobOwners) -> None:
        """Name the owners of the jobs that transactions touch, before the first one."""
        self._executor.owners = owners

    def begin(
        self,
        cause: Cause,
        moves: Mapping[str, str | None],
        plan_id: str | None = None,
        rewiring: Rewiring | None = None,
        stopped: str = "",
        *,
        room: ReservedRoom | None = None,
    ) -> RunningTransaction:
        """Lock the moving endpoints and return the transaction, not yet carried out.

        ``rewiring`` is that of the moves, when the caller has just computed it. ``stopped`` names
        the job for which the caller moves light while nothing of it runs: it has stopped it
        (``Cause.SPARE``), or its engine has not started it yet (``Cause.PLACEMENT``). ``room`` is
        reserved until its end, over restarts, too.
        ServiceError ``conflict`` when another transaction or a starting job is in the way, or
        no port is free; ``unavailable`` when a device does not answer.
        """
        state = self._state
        state.require_command()
        self._check_free(cause, moves, stopped)
        if rewiring is None:
            rewiring = self.rewired(moves)
        switches = state.connections.switches()
        for change in rewiring.changes:
            self._require(change.switch, switches, "switch")
        needed = {at for at in moves.values() if at} | state.light.aggregators_of(moves)
        aggregators = state.connections.aggregators()
        for name in sorted(needed - state.light.lost):
            self._require(name, aggregators, "aggregator")
        before, after = state.light.attachments, rewiring.attachments
        touched = [e for e in moves if before.get(e) != after.get(e)]
        checks = self.dark_time_checks(rewiring)
        if cause is not Cause.HOMES and not stopped:  # dark already, or nothing runs
            self.require_tolerated(checks)
        state.transactions.number += 1
        tx = Transaction(
            id=f"t{state.transactions.number}",
            cause=cause,
            epoch=state.epoch,
            paths=tuple(Path(EndpointEnd(e), before.get(e), after.get(e)) for e in touched),
            changes=rewiring.changes,
            jobs=() if stopped else self._held_jobs(touched, checks),
            link_up_s=self._patience_s(rewiring),
        )
        running = RunningTransaction(tx, plan_id, SteadyClock(state.clock), room)
        state.transactions.running[tx.id] = running
        if room is not None:
            state.jobs.promised[room.job] = room.endpoints
        return running

    def call_off(self, running: RunningTransaction, why: str) -> None:
        """End a begun transaction without carrying it out."""
        tx = replace(running.tx, phase=Phase.DONE, back=True, reasons=(why,))
        running.tx = tx
        record = transaction_record(running, self._state.epoch, running.clock())
        ended = replace(record, result="it was not carried out: nothing moved")
        self._state.transactions.finish(ended, tx.changes)
        self._drop(running)

    def _drop(self, running: RunningTransaction) -> None:
        self._state.transactions.running.pop(running.tx.id, None)
        if running.room is not None:
            self._state.jobs.promised.pop(running.room.job, None)
        running.ended.set()

    async def carry_out(self, running: RunningTransaction) -> Transaction:
        """Run a begun transaction to its end; never raises for a device's error."""
        state, tx = self._state, running.tx
        what = f"transaction/{tx.id}"
        if tx.cause is Cause.REGROUP:
            jobs = ", ".join(job.name for job in tx.jobs) or "no job"
            text = f"{len(tx.endpoints)} endpoints move, {jobs} touched"
            state.events.add("info", what, "RegroupStarted", text)
        try:
            tx = await run(
                tx, self._executor, self._intent.changed, running.clock, running.commands
            )
            running.tx = tx
            record = transaction_record(running, state.epoch, running.clock())
            if running.admitted and not running.written:
                await self._written(running, PutTransaction(record, intent_of(tx, running.room)))
            elif not running.written:  # it never began: nothing depends on this row
                state.journal.owe(PutTransaction(record, intent_of(tx, running.room)))
            state.transactions.finish(record, tx.changes)
        finally:
            self._executor.forget(tx.id)
            self._drop(running)
            state.jobs.wake.set()
        self._report(tx, record)
        return tx

    async def _written(self, running: RunningTransaction, end: PutTransaction) -> None:
        """Wait until the store has the end; only the announcement waits for it.

        A restart before that would end the transaction as the log says, which may differ.
        """
        journal = self._state.journal
        journal.owe(end)
        while not running.written:
            try:
                await journal.flush()
                running.written = True
            except ServiceError:
                await asyncio.sleep(FLUSH_AGAIN_S)

    def _report(self, tx: Transaction, record: TransactionRecord) -> None:
        outcome = tx.ending
        dark = max(tx.dark_time_s.values(), default=0.0)
        text = record.result + (f"; dark {dark * 1000:.0f} ms" if dark else "")
        severity: str = "info" if outcome is Outcome.COMMITTED else "error"
        if record.error:
            text += f"; {record.error}"
            severity = "error" if outcome is not Outcome.COMMITTED else "warning"
        events = self._state.events
        reason = finished_reason(tx.cause, outcome)
        events.add(severity, f"transaction/{tx.id}", reason, text)  # type: ignore[arg-type]
        for job in tx.jobs:
            moved = self._moved(job.name, record)
            done = "LightMoved" if outcome is Outcome.COMMITTED else "LightNotMoved"
            events.add(severity, f"job/{job.name}", done, moved)  # type: ignore[arg-type]
        for entry in quarantine_of(tx, self._state.clock()):
            kind = "aggregator" if "/" in entry.object else "endpoint"
            events.add("error", f"{kind}/{entry.object}", "Quarantined", entry.reason)

    def _moved(self, name: str, record: TransactionRecord) -> str:
        """Say to a job's user what a transaction did to its light."""
        job = self._state.jobs.get(name)
        mine = [m for m in record.moves if job is not None and m.endpoint in job.endpoints]
        moves = ", ".join(
            f"{m.endpoint} from {m.source or 'dark'} to {m.target or 'dark'}" for m in mine
        )
        what = moves if record.state == "committed" else f"not moved, it was to be: {moves}"
        dark = max((record.dark_time_s.get(m.endpoint, 0.0) for m in mine), default=0.0)
        return f"{what or 'light beside it'}; dark {dark * 1000:.0f} ms; transaction {record.id}"

    def rewired(
        self, moves: Mapping[str, str | None], besides: frozenset[AttachPoint] = frozenset()
    ) -> Rewiring:
        """Return the circuits for the moves now. ServiceError ``conflict`` without such circuits.

        ``besides`` are free ports that must not be used either.
        """
        state = self._state
        return _rewired(
            state.site, state.light.attachments, moves, state.blocked_points() | besides
        )

    async def foreseen(
        self, moves: Mapping[str, str | None], besides: frozenset[AttachPoint] = frozenset()
    ) -> Rewiring:
        """Return the circuits for the moves now, as ``rewired``, computed beside the loop."""
        state = self._state
        for _ in range(FORESIGHTS):
            at, blocked = dict(state.light.attachments), state.blocked_points()
            work = asyncio.to_thread(_rewired, state.site, at, moves, blocked | besides)
            found = await work
            if at == state.light.attachments and blocked == state.blocked_points():
                return found
        return self.rewired(moves, besides)

    async def without_ports(self, moves: Mapping[str, str | None]) -> dict[str, str]:
        """Return the moves that have no port now, and why; computed beside the loop."""
        state = self._state
        at, blocked = dict(state.light.attachments), state.blocked_points()
        return await asyncio.to_thread(without_ports, state.site, at, moves, blocked)

    def busy_jobs(self) -> dict[str, str]:
        """Return the jobs whose light must not move now, each with what is being done with it."""
        state = self._state
        busy = {
            job.name: doing
            for job in state.jobs.values()
            if job.holding
            and job.name not in state.jobs.halted
            and (doing := "is starting" if job.state == "starting" else self._ender.doing(job.name))
        }
        for ident, running in state.transactions.moving().items():
            busy.update({held.name: f"is in transaction {ident}" for held in running.tx.jobs})
        return busy

    def _check_free(self, cause: Cause, moves: Mapping[str, str | None], stopped: str) -> None:
        state = self._state
        locked, holders, busy = state.transactions.locked(), state.jobs.holders(), self.busy_jobs()
        if cause is not Cause.HOMES:  # a recovery restores them this way
            busy.update(dict.fromkeys(state.jobs.owed, "is not recovered yet"))
        for endpoint in moves:
            if endpoint in locked:
                raise ServiceError(
                    "conflict",
                    f"{endpoint} is being moved by transaction {locked[endpoint]}",
                    object=f"endpoint/{endpoint}",
                    hint="wait for it, then make a new plan",
                )
            job = holders.get(endpoint)
            if job is not None and job.name in busy and job.name != stopped:
                raise ServiceError(
                    "conflict",
                    f"job {job.name} {busy[job.name]}",
                    object=f"job/{job.name}",
                    hint="try again in a moment",
                )

    def _require(self, name: str, there: frozenset[str], kind: str) -> None:
        if name not in there:
            raise ServiceError(
                "unavailable",
                f"{kind} {name} does not answer",
                object=f"{kind}/{name}",
                hint=f"see `lightloom get {'switches' if kind == 'switch' else 'aggregators'}`",
            )

    def dark_time_s(self, rewiring: Rewiring) -> float:
        """Return how long a rewiring is predicted to leave endpoints without light, in seconds."""
        switches = self._state.site.switches
        known = {s.name: self._switches.capabilities(s.name) for s in switches}
        return predicted_dark_time_s(rewiring, known, self.links.up_s)

    def _patience_s(self, rewiring: Rewiring) -> float:
        """Return the slowest link-up, in seconds, on the way there or back."""
        back = Rewiring(tuple(c.undone() for c in rewiring.changes), rewiring.attachments)
        return max(self.links.slowest(rewiring).up_s, self.links.slowest(back).up_s)

    def dark_time_checks(self, rewiring: Rewiring) -> dict[str, DarkTimeCheck]:
        """Return, by name, what the dark time means for each job whose light is cut."""
        holders = self._state.jobs.holders()
        dark_s = self.dark_time_s(rewiring)
        cut = [link.endpoint for change in rewiring.changes for link in change.delete]
        jobs = {job.name: job for e in cut if (job := holders.get(e))}
        return {
            name: check_dark_time(job, Policy(job.request.policy), dark_s)
            for name, job in jobs.items()
        }

    @staticmethod
    def require_tolerated(checks: Mapping[str, DarkTimeCheck]) -> None:
        """Raise ServiceError ``conflict`` for a job that tolerates no such dark time."""
        for check in checks.values():
            if check.verdict == "refused":
                raise ServiceError(
                    "conflict",
                    f"job {check.job} would be {check.reason}",
                    object=f"job/{check.job}",
                    hint="move fewer circuits at once, or raise the job's dark_tolerance_s",
                )

    def _held_jobs(
        self, endpoints: Sequence[str], checks: Mapping[str, DarkTimeCheck]
    ) -> tuple[HeldJob, ...]:
        holders = self._state.jobs.holders()
        jobs = {job.name: job for e in endpoints if (job := holders.get(e))}
        return tuple(
            HeldJob(
                job.name,
                self._policy(job, checks.get(job.name)),
                job.endpoints,
                job.request.checkpoint_grace_s,
            )
            for job in jobs.values()
        )

    def _policy(self, job: JobRecord, check: DarkTimeCheck | None) -> Policy:
        if job.state == "paused":
            return Policy.LIVE  # its owner has frozen it, and it must stay frozen
        if not self._state.freezes(job):
            return Policy.LIVE  # the agents of its nodes do not freeze it
        if check is None:
            return Policy(job.request.policy)
        if check.verdict == "downgraded":
            self._state.events.add("warning", f"job/{job.name}", "Downgraded", check.reason)
        return check.policy


def _rewired(
    site: CabledSite,
    at: Mapping[str, AttachPoint],
    moves: Mapping[str, str | None],
    blocked: frozenset[AttachPoint],
) -> Rewiring:
    try:
        return rewire(site, at, moves, blocked)
    except RewiringError as error:
        raise ServiceError(
            "conflict", str(error), object=error.object, hint="make a new plan"
        ) from None
