"""Runs one transaction: passes events to the pure machine and its instructions to the executor.

Any number of transactions may run at a time, as long as their endpoints are disjoint.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from base.clock import SteadyClock
from controller.fabric.executor import Executor
from controller.transaction.instructions import (
    Instruction,
    SetDeadline,
)
from controller.transaction.machine import begin, handle
from controller.transaction.model import (
    AllQualified,
    Event,
    Phase,
    Qualified,
    Transaction,
)

LEFTOVER_GRACE_S = 5.0


async def run(
    tx: Transaction,
    executor: Executor,
    changed: Callable[[Transaction], None],
    clock: SteadyClock,
    commands: asyncio.Queue[Event] | None = None,
) -> Transaction:
    """Run ``tx`` to its end and return it.

    ``changed`` is called with every state; ``commands`` carries an operator's AbortAsked. All times
    of the transaction come from ``clock``.
    """
    inbox = commands if commands is not None else asyncio.Queue()
    work = _Run(executor, changed, clock, inbox)
    grace_s = 0.0  # cancelled: the controller stops, and the next start handles what remains
    try:
        tx = await work.until_done(tx)
        grace_s = LEFTOVER_GRACE_S
        return tx
    finally:
        await work.settle(grace_s)


class _Run:
    """One transaction under way: its inbox and the tasks of its instructions."""

    def __init__(
        self,
        executor: Executor,
        changed: Callable[[Transaction], None],
        clock: SteadyClock,
        inbox: asyncio.Queue[Event],
    ) -> None:
        self._executor = executor
        self._changed = changed
        self._clock = clock
        self._inbox = inbox
        self._later: deque[Event] = deque()
        """Taken from the inbox and not handled yet."""
        self._calls: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.Task[None]] = set()

    async def until_done(self, tx: Transaction) -> Transaction:
        """Feed events until the transaction has an outcome."""
        changed = self._changed
        tx, orders = begin(tx, self._clock())
        while tx.phase is not Phase.DONE:
            changed(tx)
            if orders:
                await self._hand_out(tx, orders)
            tx, orders = handle(tx, await self._next(), self._clock())
        await self._hand_out(tx, orders)
        changed(tx)
        return tx

    async def _next(self) -> Event:
        """Return the next event; proofs that arrived together are merged."""
        event = self._later.popleft() if self._later else await self._inbox.get()
        if not isinstance(event, Qualified):
            return event
        at = {event.end: event.at}
        while not self._later and not self._inbox.empty():
            other = self._inbox.get_nowait()
            if isinstance(other, Qualified) and other.step == event.step:
                at[other.end] = other.at
            else:
                self._later.append(other)
        return AllQualified(event.step, at)

    async def _hand_out(self, tx: Transaction, orders: Sequence[Instruction]) -> None:
        if any(isinstance(order, SetDeadline) for order in orders):  # a new step begins
            for timer in self._timers:
                timer.cancel()
            # A call of an overdue step may still be running on the device; let it end first,
            # so that the call that reverts it does not overtake it.
            if self._calls:
                await asyncio.wait(self._calls, timeout=LEFTOVER_GRACE_S)
        for order in orders:
            kind = self._timers if isinstance(order, SetDeadline) else self._calls
            task = asyncio.create_task(self._answer(tx, order))
            kind.add(task)
            task.add_done_callback(kind.discard)

    async def _answer(self, tx: Transaction, order: Instruction) -> None:
        event = await self._executor.perform(tx, order, self._clock)
        if event is not None:
            self._inbox.put_nowait(event)

    async def settle(self, grace_s: float) -> None:
        """Let the last calls end, for ``grace_s`` at most, and drop the timers."""
        if self._calls and grace_s:
            await asyncio.wait(self._calls, timeout=grace_s)
        late = (*self._timers, *self._calls)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
