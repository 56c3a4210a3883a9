"""What people and the store get to see of a transaction. Pure."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from controller.devices.aggregators import AttachPoint
from controller.schema.plans import (
    CircuitChangesView,
    CircuitStepView,
    MoveView,
    PhaseView,
    TransactionView,
)
from controller.state.records import Quarantine
from controller.state.writes import (
    Intent,
)
from controller.transaction.circuits import Link, SwitchChange
from controller.transaction.machine import abortable
from controller.transaction.model import (
    Cause,
    Outcome,
    Path,
    Phase,
    Transaction,
)
from controller.transaction.model import (
    Event as TransactionEvent,
)
from controller.transaction.phases import FLOWS, LOG, LULL, QUIET
from scheduler.model import Policy

KEPT_TRANSACTIONS = 200
"""Finished ones; what a start reads must not grow with a site's age."""

TransactionState = Literal["running", "rolling_back", "committed", "rolled_back", "quarantined"]

_SENTENCES = {
    Outcome.COMMITTED: "every path of the new epoch is proven",
    Outcome.ROLLED_BACK: "the old paths are back",
    Outcome.QUARANTINED: "an endpoint lost both its paths and is out of use",
}

_WAITS = {
    LOG: "the intent log",
    LULL: "a lull in the job's traffic",
    QUIET: "the last bytes in flight",
    FLOWS: "the aggregators' flows",
}


def intent_of(tx: Transaction) -> Intent:
    """Return what recovery needs; at commit every path stands where ``target`` says."""
    proven = tx.phase is Phase.QUALIFY and not tx.back
    return Intent(
        before={p.endpoint: p.before for p in tx.paths},
        after={p.endpoint: p.after for p in tx.paths},
        proven=proven or (tx.phase is Phase.COMMIT and not tx.back),
        quiesced_jobs=tuple(j.name for j in tx.jobs),
    )


def outcome_of(tx: Transaction) -> Outcome:
    """Return how a transaction in its last phase ends."""
    if not tx.back:
        return Outcome.COMMITTED
    return Outcome.QUARANTINED if tx.lost else Outcome.ROLLED_BACK


def quarantine_of(tx: Transaction, now: float) -> tuple[Quarantine, ...]:
    """Return what must not be used any more after ``tx``."""
    why = f"no light in transaction {tx.id}: {'; '.join(tx.reasons)}"
    ports = [Quarantine(f"{p.aggregator}/{p.port}", why, now) for p in tx.quarantine]
    return (*ports, *(Quarantine(name, why, now) for name in tx.lost))


def transaction_view(running: Running, epoch_after: int | None, now: float) -> TransactionView:
    """Return a transaction as people see it; with ``epoch_after``, as it ends.

    Without, it is under way, whatever its phase: its end is told when the store has it.
    """
    tx = running.tx
    ended = epoch_after is not None and tx.phase in (Phase.COMMIT, Phase.DONE)
    outcome = outcome_of(tx) if ended else None
    return TransactionView(
        id=tx.id,
        state=_state(tx, outcome),
        phase=tx.phase.value,
        waiting_for=_waiting_for(tx, ended=ended),
        phases=_phases(tx, now if ended else None),
        cause=tx.cause.value,
        plan_id=running.plan_id,
        epoch_before=tx.epoch,
        epoch_after=epoch_after if ended else None,
        moves=list(_moves(tx.paths)),
        jobs=[job.name for job in tx.jobs],
        dark_time_s={e: round(t, 6) for e, t in tx.dark_time_s.items()},
        started_at=running.started_at,
        finished_at=now if ended else None,
        result=_SENTENCES[outcome] if outcome else "",
        error="; ".join(tx.reasons),
        how_to_stop="" if ended else _how_to_stop(tx),
        quarantined_ports=[entry.object for entry in quarantine_of(tx, now)] if ended else [],
    )


def recovered_view(view: TransactionView, *, proven: bool, now: float) -> TransactionView:
    """Return the end of a transaction that a restart of the controller interrupted."""
    outcome = Outcome.COMMITTED if proven else Outcome.ROLLED_BACK
    return view.model_copy(
        update={
            "state": outcome.value,
            "phase": Phase.DONE.value,
            "waiting_for": "",
            "finished_at": now,
            "result": f"the controller restarted; {_SENTENCES[outcome]}",
        }
    )


def finished_reason(cause: Cause, outcome: Outcome) -> str:
    """Return the event's word for the end of a transaction."""
    subject = "Regroup" if cause is Cause.REGROUP else "Rewiring"
    verb = {
        Outcome.COMMITTED: "Committed",
        Outcome.ROLLED_BACK: "RolledBack",
        Outcome.QUARANTINED: "Quarantined",
    }
    return subject + verb[outcome]


def _waiting_for(tx: Transaction, *, ended: bool) -> str:
    if tx.phase is Phase.DONE and not ended:
        return _WAITS[LOG]
    return ", ".join(_WAITS.get(what, what) for what in sorted(tx.waiting))


def _how_to_stop(tx: Transaction) -> str:
    if tx.back:
        return "it is on its way back to the old paths"
    if tx.abort:
        return "it turns back as soon as the devices have answered"
    if not abortable(tx):
        return "its new paths are proven; it goes on to its end"
    return f"lightloom abort {tx.id}"


def _state(tx: Transaction, outcome: Outcome | None) -> TransactionState:
    if outcome is not None:
        return outcome.value
    return "rolling_back" if tx.back else "running"


def _phases(tx: Transaction, end: float | None) -> list[PhaseView]:
    times = [
        PhaseView(name=f"{p.phase.value} back" if p.back else p.phase.value, started_at=p.at)
        for p in tx.phases
    ]
    for view, following in pairwise(times):
        view.finished_at = following.started_at
    if times and end is not None:
        times[-1].finished_at = end
    return times


@lru_cache(maxsize=4)
def _moves(paths: tuple[Path, ...]) -> tuple[MoveView, ...]:
    """Kept for the latest transactions, which are shown many times while they run."""
    return tuple(
        MoveView(endpoint=p.endpoint, source=_home(p.before), target=_home(p.after)) for p in paths
    )


def _home(point: AttachPoint | None) -> str | None:
    return point.aggregator if point else None


@lru_cache(maxsize=4)
def circuit_changes(changes: tuple[SwitchChange, ...]) -> CircuitChangesView:
    """Return the circuits that are broken and made, whatever their switch.

    Kept for the latest changes: a transaction is shown many times, and its circuits stay the same.
    """
    return CircuitChangesView(
        break_=[_step(link) for change in changes for link in change.delete],
        make=[_step(link) for change in changes for link in change.make],
    )


def _step(link: Link) -> CircuitStepView:
    return CircuitStepView(
        switch=link.switch,
        a=link.a,
        b=link.b,
        endpoint=link.endpoint,
        aggregator=link.aggregator,
        aggregator_port=link.port,
    )


@dataclass(slots=True)
class Running:
    """A transaction under way: its pure state and what its view needs beside it."""

    tx: Transaction
    plan_id: str | None
    started_at: float
    commands: asyncio.Queue[TransactionEvent] = field(default_factory=asyncio.Queue)
    """An operator's way in: AbortAsked."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the transaction has left the list of running ones."""
    admitted: bool = False
    """Whether the store has the transaction's beginning, or may have it."""
    written: bool = False
    """Whether the store has its end: until then it is not told."""
    stopped: frozenset[str] = field(init=False)
    """Jobs that the transaction stops and starts again."""

    def __post_init__(self) -> None:
        restarted = (job.name for job in self.tx.jobs if job.policy is Policy.RESTART)
        self.stopped = frozenset(restarted)
