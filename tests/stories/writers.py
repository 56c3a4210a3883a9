"""Several parts change one record and make it durable at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from controller.state.events import EventLog
from controller.state.intend.keys import FACTS
from controller.state.journal import Journal
from controller.state.kinds.kind import Key
from controller.state.writes import KeptAnswer, Loaded, PutFacts, Write
from controller.usage.interval import UsageInterval
from controller.usage.ledger import UsageLedger
from controller.usage.window import Kept, UsageQuery
from testbed.simulated.loop import answered
from tests.stories.telling import Log, tell

DISK_S = 0.5
"""Longest time of a commit."""


@dataclass(frozen=True)
class Change:
    """One part raises the epoch and makes it durable, ``at_ms`` after the beginning."""

    how: Literal["commit", "record"]
    at_ms: int


class _Memory:
    """A store in memory, as slow as the seed draws."""

    def __init__(self) -> None:
        self.epoch = 0

    async def load(self) -> Loaded:
        raise AssertionError("nothing is read")

    async def commit(self, *writes: Write) -> None:
        await answered(DISK_S)
        for write in writes:
            if isinstance(write, PutFacts):
                self.epoch = int(write.facts["epoch"])
        await answered(DISK_S)

    async def look_up(self) -> None: ...

    async def answer(self, ident: str) -> KeptAnswer | None:
        raise AssertionError("nothing is read")

    async def measurement_result(self, ident: str) -> str | None:
        raise AssertionError("nothing is read")

    async def usage(self, window: UsageQuery, live: Sequence[UsageInterval]) -> Kept:
        raise AssertionError("nothing is read")


class _Parts:
    """The parts, the journal that they share, and what they were told."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._store = _Memory()
        self._epoch = 0
        events = EventLog(lambda: 0.0, lambda: self._epoch)
        self._journal = Journal(self._store, events, self._row, UsageLedger())

    def _row(self, key: Key) -> Write | None:
        return self._facts()

    def _facts(self) -> PutFacts:
        return PutFacts({"epoch": str(self._epoch)})

    async def change(self, change: Change) -> None:
        """Raise the epoch; what is acknowledged then is on the disk."""
        await asyncio.sleep(change.at_ms / 1000)
        self._epoch += 1
        mine = self._epoch
        self._log.note(f"{change.how} {mine}")
        if change.how == "commit":
            await self._journal.commit(FACTS)
        else:
            await self._journal.record(FACTS)
        self._log.note(f"acknowledged {mine}, the disk has {self._store.epoch}")
        assert self._store.epoch >= mine, (
            f"epoch {mine} is acknowledged, and the disk has {self._store.epoch}"
        )


def story(changes: Sequence[Change], seed: int) -> Log:
    """Tell a story of writers; AssertionError when an acknowledged change is not durable."""

    async def told(log: Log) -> None:
        parts = _Parts(log)
        await asyncio.gather(*(parts.change(change) for change in changes))

    return tell(told, seed)
