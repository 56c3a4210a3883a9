"""What the feed is fed with: the state is looked at often, and what differs is published.

Looking, instead of a call at every place that changes something, keeps the publisher out of the
keepers' way; what a list shows and nobody announces can not be forgotten that way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from controller.schema.stream import (
    ChangedKind,
    ChangedView,
    ContainerSampleView,
    JobSampleView,
    LinkSampleView,
    ResyncView,
    SampleView,
    TransactionFrameView,
)
from controller.state.records import TransactionRecord
from controller.state.state import State
from controller.state.transactions import Running
from controller.stream.changes import Facts, FactsKeeper
from controller.stream.feed import Feed
from controller.telemetry.rates import mean, total
from controller.telemetry.throughput import Telemetry
from controller.transaction.model import Transaction
from controller.views.fabric import event_view
from controller.views.transactions import circuit_changes, running_view, transaction_view

LOOK_EVERY_S = 0.1
MANY = 16
"""More changes of one kind in one look are told by one frame, without a name."""


class FeedKeeper:
    """Publishes what changes."""

    def __init__(self, state: State, facts: FactsKeeper, telemetry: Telemetry, feed: Feed) -> None:
        self._state = state
        self._facts = facts
        self._telemetry = telemetry
        self._feed = feed
        self._shown: Mapping[ChangedKind, Facts] = {}
        self._transactions: dict[str, Transaction] = {}
        self._ended: dict[str, TransactionRecord] = {}
        self._last_event = 0

    def begin(self) -> None:
        """Take the present state as known: what was before is nobody's news."""
        self._shown = self._facts.look()
        self._last_event = self._state.events.last_id
        self._ended = dict(self._state.finished)
        self._telemetry.on_tick = self.sample

    async def run(self) -> None:
        """Look ten times a second, for ever."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Publish everything that differs from the last look.

        Nothing here waits, and the lists are answered from the same state on the same loop: who
        reads a list because of a frame sees at least what the frame is about.
        """
        state = self._state
        if state.events.last_id != self._last_event:
            for event in state.events.newer(self._last_event):
                self._feed.publish("event", event_view(event))
            self._last_event = state.events.last_id
        before, self._shown = self._shown, self._facts.look()
        for kind, shown in self._shown.items():
            self._differ(kind, before.get(kind, {}), shown)
        self._look_at_transactions()

    def sample(self) -> None:
        """Publish the second that telemetry has just taken."""
        if self._feed.readers:
            self._feed.publish("sample", self._sample())

    def _sample(self) -> SampleView:
        containers: list[ContainerSampleView] = []
        jobs: list[JobSampleView] = []
        for job in self._state.jobs.values():
            if not job.holding:
                continue
            mine = [
                self._container(job.name, rank, endpoint)
                for rank, endpoint in enumerate(job.endpoints)
            ]
            containers += mine
            jobs.append(
                JobSampleView(
                    name=job.name,
                    rx_bps=total([c.rx_bps for c in mine]),
                    tx_bps=total([c.tx_bps for c in mine]),
                    utilisation=mean([c.utilisation for c in mine]),
                )
            )
        links = [
            LinkSampleView(device=at.aggregator, port=at.port, rx_bps=r.rx_bps, tx_bps=r.tx_bps)
            for at, r in self._telemetry.all_ports().items()
        ]
        return SampleView(time=self._state.clock(), jobs=jobs, containers=containers, links=links)

    def _container(self, job: str, rank: int, endpoint: str) -> ContainerSampleView:
        rates = self._telemetry.rates(endpoint)
        sample = self._telemetry.sample(job, rank)
        return ContainerSampleView(
            job=job,
            rank=rank,
            endpoint=endpoint,
            rx_bps=rates.rx_bps,
            tx_bps=rates.tx_bps,
            utilisation=sample.utilisation if sample else None,
            source=sample.source if sample else None,
        )

    def _differ(self, kind: ChangedKind, before: Facts, now: Facts) -> None:
        if before is now:
            return
        names = [name for name, fact in now.items() if _other(before.get(name), fact)]
        names += [name for name in before if name not in now]
        for name in names if len(names) <= MANY else [""]:
            view = ChangedView(kind=kind, name=name, epoch=self._state.epoch)
            self._feed.publish("changed", view)

    def _look_at_transactions(self) -> None:
        state = self._state
        for ident, running in list(state.running.items()):
            if self._transactions.get(ident) is not running.tx:
                self._transactions[ident] = running.tx
                self._feed.publish("transaction", self._frame(running))
        for ident, record in state.finished.items():
            if self._ended.get(ident) is not record:
                self._feed.publish("transaction", self._last_frame(record))
        self._ended = dict(state.finished)
        for ident in [i for i in self._transactions if i not in state.running]:
            del self._transactions[ident]
            if ident not in self._ended:
                text = f"transaction {ident} broke off; nothing is known of its end"
                self._feed.publish("resync", ResyncView(reason=text))

    def _last_frame(self, record: TransactionRecord) -> TransactionFrameView:
        view = transaction_view(record)
        told = {name: getattr(view, name) for name in type(view).model_fields}
        circuits = circuit_changes(self._state.moved.get(view.id, ()))
        return TransactionFrameView(**told, circuits=circuits)

    def _frame(self, running: Running) -> TransactionFrameView:
        view = running_view(running)
        return TransactionFrameView(
            **{name: getattr(view, name) for name in type(view).model_fields},
            circuits=circuit_changes(running.tx.changes),
            waits_for=view.waiting_for,
        )


def _other(before: object, now: object) -> bool:
    return before is not now and before != now
