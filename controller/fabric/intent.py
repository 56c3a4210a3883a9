"""The fabric's intent: where light belongs, which endpoints are held, and the flows for both.

Transactions change the fabric's state through this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from controller.base import failpoints
from controller.base.errors import OutcomeUnknownError, ServiceError
from controller.devices.aggregators import AggregatorError, Aggregators, AttachPoint
from controller.devices.engine import ExecutionEngine, RankState, RankStatus
from controller.ranks.calls import observe_containers
from controller.state.intend import keys
from controller.state.kept.kinds import row_of
from controller.state.scheduling import with_pause
from controller.state.state import State
from controller.state.transactions import intent_of, quarantine_of, transaction_record
from controller.state.writes import PutTransaction
from controller.transaction.circuits import of_endpoints
from controller.transaction.model import Cause, Phase, Transaction


class FabricIntent:
    """Changes the intent as transactions proceed, and keeps the aggregators equal to it."""

    def __init__(self, state: State, aggregators: Aggregators, engine: ExecutionEngine) -> None:
        self._state = state
        self._aggregators = aggregators
        self._engine = engine
        self._observed: Sequence[RankStatus] = ()
        self._occupied: Mapping[str, tuple[str, int]] = {}
        """Endpoints with a live container, its job and epoch, as of ``_observed``."""
        self._unheld: set[str] = set()
        """Endpoints to be held whose flows may still be missing on an aggregator."""

    async def converge(self, needed: frozenset[str] = frozenset()) -> None:
        """Bring all aggregators to the intent. ServiceError when one in ``needed`` is away.

        Any other aggregator that is away follows when it reconnects.
        """
        self._state.require_command()
        try:
            await self._aggregators.converge(self._state.forwarding(), needed)
        except AggregatorError as error:
            raise ServiceError(
                "unavailable", str(error), object=f"aggregator/{error.obj}", hint=error.hint
            ) from error

    async def write_log(self, tx: Transaction) -> None:
        """Make the transaction durable; at commit together with everything it changed.

        ServiceError when the store refuses: then nothing begins, or the end stays owed.
        """
        state = self._state
        running = state.transactions.running[tx.id]
        now = running.clock()
        record = transaction_record(running, state.epoch, now)
        entry = PutTransaction(record, intent_of(tx, running.room))
        if tx.phase is not Phase.COMMIT:
            async with failpoints.around("log-admit" if tx.phase is Phase.ADMIT else "log-proven"):
                try:
                    await state.commit(entry, keys.FACTS)
                except (OutcomeUnknownError, asyncio.CancelledError):
                    running.admitted = True  # the store may have it
                    raise
            running.admitted = True
            return
        quarantined = quarantine_of(tx, now)
        for port in quarantined:
            state.light.quarantine.put(port)
        async with failpoints.around("log-commit"):
            self._charge_dark_time(tx)
            await state.record(
                entry,
                keys.FACTS,
                keys.ATTACHMENTS,
                *map(row_of, quarantined),
                *(keys.job(job.name) for job in tx.jobs),
            )
        running.written = True

    async def hold(self, places: Mapping[str, AttachPoint | None]) -> None:
        """Drop the endpoints' traffic and admit probes at their future places."""
        state = self._state
        if self._unheld.isdisjoint(places) and places.items() <= state.light.held.items():
            return
        involved = state.light.aggregators_of(places)
        involved |= {point.aggregator for point in places.values() if point}
        state.light.held.update(places)
        self._unheld.update(places)
        await self.converge(involved - state.light.lost)
        self._unheld.difference_update(places)
        self._aggregators.foresee(state.forwarding_at(places))

    async def release(self, tx: Transaction) -> None:
        """Make the transaction's target the intent, under a new epoch when anything changed."""
        state = self._state
        involved = state.light.aggregators_of(tx.endpoints)
        changed = state.light.relocate(tx.target)
        for endpoint, point in of_endpoints(tx.target).items():
            if point is not None:
                state.light.detached.discard(endpoint)
            elif tx.cause is Cause.ATTACH and not tx.back:
                state.light.detached.add(endpoint)
            state.light.held.pop(endpoint, None)
            self._unheld.discard(endpoint)
        if changed or (tx.quarantine and tx.attempt == 0):
            state.next_epoch()
        involved |= state.light.aggregators_of(tx.endpoints)
        await self.converge(involved - state.light.lost)

    async def let_go(self, endpoints: Sequence[str]) -> None:
        """End the hold on endpoints that no job has any more. ServiceError."""
        for endpoint in endpoints:
            self._state.light.held.pop(endpoint, None)
            self._unheld.discard(endpoint)
        await self.converge()

    async def observe(self) -> None:
        """Observe the containers again."""
        await observe_containers(self._state, self._engine)

    def answers(self, endpoint: str) -> bool:
        """Whether a container holds the endpoint's NIC, or a node of another engine in use."""
        state = self._state
        if self._observed is not state.jobs.statuses:
            self._observed = state.jobs.statuses
            live = (RankState.RUNNING, RankState.PAUSED)
            self._occupied = {
                s.endpoint: (s.job, s.epoch) for s in self._observed if s.state in live
            }
        if endpoint in state.theirs:  # the node itself has the NIC, whatever runs there
            return any(endpoint in job.endpoints for job in state.jobs.values() if job.holding)
        name, epoch = self._occupied.get(endpoint, ("", 0))
        job = state.jobs.get(name)
        if job is None or not job.holding or job.epoch != epoch or endpoint not in job.endpoints:
            return False
        # A job that a transaction has stopped does not answer.
        return not any(name in running.stopped for running in state.transactions.moving().values())

    def port_up(self, point: AttachPoint) -> bool:
        """Whether the aggregator sees a carrier; True when it has not reported."""
        return self._aggregators.carrier(point.aggregator).get(point.port, True)

    def changed(self, tx: Transaction) -> None:
        """Store the transaction's latest state."""
        running = self._state.transactions.running[tx.id]
        before, running.tx = running.tx, tx
        self._state.usage.look_at(before.still ^ tx.still, self._state.jobs)
        if tx.phase is Phase.DONE:
            self._state.jobs.wake.set()

    def _charge_dark_time(self, tx: Transaction) -> None:
        dark_s = of_endpoints(tx.dark_time_s)
        broken_at, whole_at = of_endpoints(tx.broken_at), of_endpoints(tx.whole_at)
        for job in tx.jobs:
            record = self._state.jobs[job.name]
            dark = dict(record.dark_time_s)
            for endpoint in set(job.endpoints) & dark_s.keys():
                dark[endpoint] = round(dark.get(endpoint, 0.0) + dark_s[endpoint], 6)
            self._state.usage.charge_dark(
                record,
                ((broken_at[e], whole_at[e]) for e in record.endpoints if e in dark_s),
            )
            pauses = with_pause(record.pauses, tx.id, self._state.clock())
            self._state.jobs.change(job.name, dark_time_s=dark, pauses=pauses)
