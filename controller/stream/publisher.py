"""Publishes changes: compares the state with the last snapshot ten times a second.

Comparing, instead of a call at every place that changes the state, keeps the other parts free of
the publisher, and no change of a list can be forgotten.
"""

from __future__ import annotations

import asyncio

from controller.schema.plans import TransactionView
from controller.schema.stream import (
    ChangedView,
    ResyncView,
    TransactionFrameView,
)
from controller.state.records import TransactionRecord
from controller.state.state import State
from controller.stream.changes import Changes
from controller.stream.feed import Feed
from controller.telemetry.throughput import Telemetry
from controller.transaction.circuits import SwitchChange
from controller.transaction.model import Transaction
from controller.views.fabric import event_view
from controller.views.sample import sample_view
from controller.views.transactions import circuit_changes, running_view, transaction_view

PUBLISH_EVERY_S = 0.1
MANY = 16
"""More than MANY changes of one kind in one round are announced by one frame without a name."""


class FeedPublisher:
    """Publishes events, changed objects, transactions and samples to the feed."""

    def __init__(self, state: State, changes: Changes, feed: Feed) -> None:
        self._state = state
        self._changes = changes
        self._feed = feed
        self._transactions: dict[str, Transaction] = {}
        self._ended: dict[str, TransactionRecord] = {}
        self._last_event = 0

    def begin(self) -> None:
        """Start from the present state; do not announce it."""
        self._changes.drain()
        self._last_event = self._state.events.last_id
        self._ended = dict(self._state.transactions.finished)

    async def run(self) -> None:
        """Publish the changes ten times a second."""
        while True:
            self.publish_changes()
            await asyncio.sleep(PUBLISH_EVERY_S)

    def publish_changes(self) -> None:
        """Publish everything that has changed since the last call.

        Nothing here waits, and the lists are made from the same state on the same loop: a client
        that reads a list because of a frame sees at least the change that the frame announces.
        """
        state = self._state
        if state.events.last_id != self._last_event:
            for event in state.events.newer(self._last_event):
                self._feed.publish("event", event_view(event))
            self._last_event = state.events.last_id
        for kind, names in self._changes.drain().items():
            for name in names if len(names) <= MANY else [""]:
                view = ChangedView(kind=kind, name=name, epoch=state.epoch)
                self._feed.publish("changed", view)
        self._publish_transactions()

    def publish_sample(self, telemetry: Telemetry) -> None:
        """Publish the second that ``telemetry`` has just recorded."""
        if self._feed.readers:
            self._feed.publish("sample", sample_view(self._state, telemetry))

    def _publish_transactions(self) -> None:
        state = self._state
        for ident, running in list(state.transactions.running.items()):
            if self._transactions.get(ident) is not running.tx:
                self._transactions[ident] = running.tx
                frame = _frame(running_view(running), running.tx.changes)
                self._feed.publish("transaction", frame)
        for ident, record in state.transactions.finished.items():
            if self._ended.get(ident) is not record:
                frame = _frame(transaction_view(record), state.transactions.moved.get(ident, ()))
                self._feed.publish("transaction", frame)
        self._ended = dict(state.transactions.finished)
        for ident in [i for i in self._transactions if i not in state.transactions.running]:
            del self._transactions[ident]
            if ident not in self._ended:
                text = f"transaction {ident} was interrupted; its end is not known"
                self._feed.publish("resync", ResyncView(reason=text))


def _frame(view: TransactionView, changes: tuple[SwitchChange, ...]) -> TransactionFrameView:
    fields = {name: getattr(view, name) for name in type(view).model_fields}
    return TransactionFrameView(
        **fields, circuits=circuit_changes(changes), waits_for=view.waiting_for
    )
