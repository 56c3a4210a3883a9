"""The rack of stories: fakes that answer late, and what a story may look at."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from controller.devices.engine import RankSpec, RankStatus
from controller.devices.openflow.rules.program import FlowProgram
from controller.store.store import Store
from testbed.simulated.loop import answered
from tests.parts.controller.aggregators import FakeAggregators
from tests.parts.controller.engine import FakeEngine
from tests.parts.controller.rack import Rack, crash
from tests.stories.telling import Log

CONTAINER_S = 2.0
"""Longest time that containers take to start or to stop, once before and once after they do."""


def durable_epoch(database: Path) -> int:
    """Return the site's epoch that a restart would find."""
    with contextlib.closing(sqlite3.connect(database)) as db:
        row = db.execute("SELECT value FROM facts WHERE key = 'epoch'").fetchone()
    return int(row[0]) if row else 0


@dataclass
class LateEngine(FakeEngine):
    """Servers whose answers take a time by seed, before and after they act."""

    database: Path = Path()
    """The controller's."""
    breaches: list[str] = field(default_factory=list)
    """Starts in an epoch that was not on the disk."""

    async def start(self, ranks: Sequence[RankSpec], deadline_s: float) -> list[RankStatus]:
        durable, epoch = durable_epoch(self.database), ranks[0].epoch
        if epoch > durable:
            self.breaches.append(f"{ranks[0].job} starts in epoch {epoch}, the disk has {durable}")
        await answered(CONTAINER_S)
        started = await super().start(ranks, deadline_s)
        await answered(CONTAINER_S)
        return started

    async def stop(
        self, job: str, grace_s: float, servers: Collection[str] | None = None
    ) -> list[RankStatus]:
        await answered(CONTAINER_S)
        stopped = await super().stop(job, grace_s, servers)
        await answered(CONTAINER_S)
        return stopped

    async def freeze(self, job: str, settle_s: float = 0.0) -> bool | None:
        await answered()
        frozen = await super().freeze(job, settle_s)
        await answered()
        return frozen

    async def thaw(self, job: str) -> None:
        await answered()
        await super().thaw(job)
        await answered()

    async def observe(self) -> list[RankStatus]:
        seen = await super().observe()
        await answered()
        return seen


class LateAggregators(FakeAggregators):
    """Aggregators whose flow tables take a time by seed."""

    async def install(self, programs: Mapping[str, FlowProgram], *, deadline_s: float) -> None:
        await answered()
        await super().install(programs, deadline_s=deadline_s)
        await answered()


class StoryRack(Rack):
    """A controller over late fakes, which can die."""

    engine: LateEngine

    aggregators_kind = LateAggregators

    def __init__(self, folder: Path, log: Log) -> None:
        super().__init__(folder)
        self.engine = LateEngine(self.site, database=folder / "controller.sqlite")
        self._log = log

    async def rest(self) -> None:
        """Wait until nothing is under way or owed."""
        await self.until(self._rests, 600.0)

    async def _rests(self) -> bool:
        state, journal = self.service._state, self.service.journal
        under_way = journal._owed or journal._late or journal._writer
        return not (under_way or state.transactions.running or state.jobs.handled)

    async def die(self) -> dict[str, str]:
        """Kill the controller; return the states of jobs that a restart would find."""
        for call in self.engine.calls:
            self._log.note(f"engine: {call[0]} {call[1]}")
        for event in self.service._state.events.since(0, 10_000):
            self._log.note(f"event: {event.object} {event.reason} {event.message}")
        await crash(self)
        store = Store(self.state_dir / "controller.sqlite")
        loaded = await store.load()
        await store.close()
        return {job.name: job.state for job in loaded.jobs}
