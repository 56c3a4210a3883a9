"""Transactions under way, and what the log keeps of each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from base.clock import SteadyClock
from controller.devices.aggregators import AttachPoint
from controller.state.records import (
    MoveRecord,
    PhaseRecord,
    Quarantine,
    TransactionRecord,
    TransactionState,
)
from controller.state.writes import (
    Intent,
    ReservedRoom,
)
from controller.transaction.circuits import End, SwitchChange, of_endpoints
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
from scheduler.model import Policy

KEPT_TRANSACTIONS = 200
"""Finished ones; a start must not read more as a site gets older."""

_SENTENCES = {
    Outcome.COMMITTED: "every path of the new epoch is proven",
    Outcome.ROLLED_BACK: "the old paths are back",
    Outcome.QUARANTINED: "an endpoint lost both its paths and is out of use",
}


@dataclass(slots=True)
class RunningTransaction:
    """A transaction under way: its pure state and what its view needs besides."""

    tx: Transaction
    plan_id: str | None
    clock: SteadyClock
    """The source of all times of this transaction."""
    room: ReservedRoom | None = None
    started_at: float = field(init=False)
    commands: asyncio.Queue[TransactionEvent] = field(default_factory=asyncio.Queue)
    """Carries an operator's AbortAsked."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the transaction has left the list of running ones."""
    admitted: bool = False
    """Whether the store has the transaction's beginning, or may have it."""
    written: bool = False
    """Whether the store has its end, which is not announced before."""
    stopped: frozenset[str] = field(init=False)
    """Jobs that the transaction stops and starts again."""

    def __post_init__(self) -> None:
        self.started_at = self.clock()
        restarted = (job.name for job in self.tx.jobs if job.policy is Policy.RESTART)
        self.stopped = frozenset(restarted)


class Transactions:
    """The transactions under way, and the latest ones that ended."""

    def __init__(self) -> None:
        self.number = 0
        """Number of the last transaction."""
        self.running: dict[str, RunningTransaction] = {}
        """Transactions whose end is not announced yet; see ``moving``."""
        self.interrupted = False
        """Whether some of an earlier controller are not ended yet."""
        self.finished: dict[str, TransactionRecord] = {}
        """The latest transactions that ended, by id, oldest first; see ``finish``."""
        self.moved: dict[str, tuple[SwitchChange, ...]] = {}
        """The circuits that each of them changed, where that is known."""
        self._still: tuple[tuple[Transaction, ...], frozenset[str]] = (), frozenset()

    def restore(self, records: Iterable[TransactionRecord], number: int) -> None:
        """Take over the stored transactions and the number of the last one."""
        self.finished = {record.id: record for record in records}
        self.number = number

    def moving(self) -> dict[str, RunningTransaction]:
        """Return the transactions that still hold endpoints and jobs."""
        return {i: r for i, r in self.running.items() if r.tx.phase is not Phase.DONE}

    def of_job(self, job: str) -> RunningTransaction | None:
        """Return the transaction that holds ``job`` now."""
        for running in self.moving().values():
            if any(held.name == job for held in running.tx.jobs):
                return running
        return None

    def still(self) -> frozenset[str]:
        """Return the jobs that a transaction has frozen or stopped; cheap while none changes."""
        known, still = self._still
        now = tuple(running.tx for running in self.running.values())
        if len(now) != len(known) or any(a is not b for a, b in zip(now, known, strict=True)):
            still = frozenset[str]().union(*(tx.still for tx in now))
            self._still = now, still
        return still

    def locked(self) -> dict[str, str]:
        """Return, by endpoint, the transaction that moves it."""
        return {e: ident for ident, r in self.moving().items() for e in r.tx.endpoints}

    def ends(self) -> frozenset[End]:
        """Return the ends that transactions move."""
        return frozenset(path.end for r in self.moving().values() for path in r.tx.paths)

    def finish(self, record: TransactionRecord, changes: tuple[SwitchChange, ...]) -> None:
        """Keep the end of a transaction; forget the oldest ones beyond the limit."""
        self.finished.pop(record.id, None)
        self.finished[record.id] = record
        self.moved[record.id] = changes
        while len(self.finished) > KEPT_TRANSACTIONS:
            # One that a restart interrupted stays until its end is known.
            oldest = next(i for i, kept in self.finished.items() if kept.finished_at is not None)
            del self.finished[oldest]
            self.moved.pop(oldest, None)


def intent_of(tx: Transaction, room: ReservedRoom | None) -> Intent:
    """Return what recovery needs; at commit every path is where ``target`` says."""
    proven = tx.phase is Phase.QUALIFY and not tx.back
    return Intent(
        before={p.end: p.before for p in tx.paths},
        after={p.end: p.after for p in tx.paths},
        proven=proven or (tx.phase is Phase.COMMIT and not tx.back),
        quiesced_jobs=tuple(j.name for j in tx.jobs),
        room=room,
    )


def quarantine_of(tx: Transaction, now: float) -> tuple[Quarantine, ...]:
    """Return what must not be used any more after ``tx``."""
    why = f"no light in transaction {tx.id}: {'; '.join(tx.reasons)}"
    return tuple(Quarantine(str(end), why, now) for end in (*tx.quarantine, *tx.lost))


def transaction_record(
    running: RunningTransaction, epoch_after: int | None, now: float
) -> TransactionRecord:
    """Return a transaction as the log keeps it; with ``epoch_after``, as ended.

    Without it, it is under way in any phase: its end is announced when the store has it.
    """
    tx = running.tx
    ended = epoch_after is not None and tx.phase in (Phase.COMMIT, Phase.DONE)
    outcome = tx.ending if ended else None
    return TransactionRecord(
        id=tx.id,
        state=_state(tx, outcome),
        phase=tx.phase.value,
        phases=_phases(tx, now if ended else None),
        cause=tx.cause.value,
        plan_id=running.plan_id,
        epoch_before=tx.epoch,
        epoch_after=epoch_after if ended else None,
        moves=_moves(tx.paths),
        jobs=tuple(job.name for job in tx.jobs),
        dark_time_s={e: round(t, 6) for e, t in of_endpoints(tx.dark_time_s).items()},
        started_at=running.started_at,
        finished_at=now if ended else None,
        result=_SENTENCES[outcome] if outcome else "",
        error="; ".join(tx.reasons),
        quarantined_ports=tuple(e.object for e in quarantine_of(tx, now)) if ended else (),
    )


def recovered_record(record: TransactionRecord, *, proven: bool, now: float) -> TransactionRecord:
    """Return the end of a transaction that a restart of the controller interrupted."""
    outcome = Outcome.COMMITTED if proven else Outcome.ROLLED_BACK
    return replace(
        record,
        state=outcome.value,
        phase=Phase.DONE.value,
        finished_at=now,
        result=f"the controller restarted; {_SENTENCES[outcome]}",
    )


def finished_reason(cause: Cause, outcome: Outcome) -> str:
    """Return the event reason for the end of a transaction."""
    subject = "Regroup" if cause is Cause.REGROUP else "Rewiring"
    verb = {
        Outcome.COMMITTED: "Committed",
        Outcome.ROLLED_BACK: "RolledBack",
        Outcome.QUARANTINED: "Quarantined",
    }
    return subject + verb[outcome]


def _state(tx: Transaction, outcome: Outcome | None) -> TransactionState:
    if outcome is not None:
        return outcome.value
    return "rolling_back" if tx.back else "running"


def _phases(tx: Transaction, end: float | None) -> tuple[PhaseRecord, ...]:
    until = [*(following.at for following in tx.phases[1:]), end]
    return tuple(
        PhaseRecord(f"{p.phase.value} back" if p.back else p.phase.value, p.at, left)
        for p, left in zip(tx.phases, until, strict=False)
    )


@lru_cache(maxsize=4)
def _moves(paths: tuple[Path, ...]) -> tuple[MoveRecord, ...]:
    """Return the endpoints' moves; cached, because a running transaction is shown many times."""
    moved = (p for p in paths if p.endpoint)
    return tuple(MoveRecord(p.endpoint, _home(p.before), _home(p.after)) for p in moved)


def _home(point: AttachPoint | None) -> str | None:
    return point.aggregator if point else None
