"""Documents of running and ended transactions. Pure."""

from __future__ import annotations

from functools import lru_cache

from controller.schema.plans import (
    CircuitChangesView,
    CircuitStepView,
    MoveView,
    PhaseView,
    TransactionView,
)
from controller.state.records import MoveRecord, TransactionRecord
from controller.state.transactions import RunningTransaction, transaction_record
from controller.transaction.circuits import Link, SwitchChange
from controller.transaction.machine import abortable
from controller.transaction.model import Phase, Transaction
from controller.transaction.phases import FLOWS, LOG, LULL, QUIET

_WAITS = {
    LOG: "the intent log",
    LULL: "a lull in the job's traffic",
    QUIET: "the last bytes in flight",
    FLOWS: "the aggregators' flows",
}

_SAME = frozenset(TransactionRecord.__slots__) - {"phases", "moves"}
"""Fields that the view shows as the record has them."""


def running_view(running: RunningTransaction) -> TransactionView:
    """Return the view of a running transaction."""
    tx = running.tx
    view = transaction_view(transaction_record(running, None, running.clock()))
    view.waiting_for = _waiting_for(tx)
    view.how_to_stop = _how_to_stop(tx)
    return view


def transaction_view(record: TransactionRecord) -> TransactionView:
    """Return the view of a transaction from its record in the log."""
    same = {name: getattr(record, name) for name in _SAME}
    return TransactionView(
        **same,
        phases=[
            PhaseView(name=p.name, started_at=p.started_at, finished_at=p.finished_at)
            for p in record.phases
        ],
        moves=list(_moves(record.moves)),
    )


@lru_cache(maxsize=4)
def circuit_changes(changes: tuple[SwitchChange, ...]) -> CircuitChangesView:
    """Return the endpoints' circuits that are broken and made on all switches.

    Cached for the latest changes: a transaction is shown many times with the same circuits.
    """
    return CircuitChangesView(
        break_=[_step(link) for change in changes for link in change.delete if link.endpoint],
        make=[_step(link) for change in changes for link in change.make if link.endpoint],
    )


def _step(link: Link) -> CircuitStepView:
    return CircuitStepView(
        switch=link.switch,
        a=link.a,
        b=link.b,
        endpoint=link.endpoint,
        aggregator=link.point.aggregator,
        aggregator_port=link.point.port,
    )


def _waiting_for(tx: Transaction) -> str:
    if tx.phase is Phase.DONE:
        return _WAITS[LOG]
    return ", ".join(_WAITS.get(what, what) for what in sorted(map(str, tx.waiting)))


def _how_to_stop(tx: Transaction) -> str:
    if tx.back:
        return "it is already going back to the old paths"
    if tx.abort:
        return "it turns back as soon as the devices have answered"
    if not abortable(tx):
        return "its new paths are proven; it cannot be stopped"
    return f"lightloom abort {tx.id}"


@lru_cache(maxsize=8)
def _moves(moves: tuple[MoveRecord, ...]) -> tuple[MoveView, ...]:
    """Cached for the latest transactions, which are shown many times while they run."""
    return tuple(MoveView(endpoint=m.endpoint, source=m.source, target=m.target) for m in moves)
