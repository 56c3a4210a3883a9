"""The rack of stories: fakes that answer late, and a controller that dies and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from agentlink.ranks import RankSpec
from controller.devices.aggregators import AggregatorEvent
from controller.devices.engine import RankState, RankStatus
from controller.devices.openflow.rules.program import FlowProgram
from controller.store.store import Store
from sitefile import load_site
from sitefile.recovery import RecoveryPolicy
from testbed.simulated.lives import DiedError
from testbed.simulated.loop import answered
from tests.parts.controller.aggregators import FakeAggregators
from tests.parts.controller.engine import FakeEngine
from tests.parts.controller.rack import Rack
from tests.parts.controller.switch import FakeOcs
from tests.parts.sites import PAPER
from tests.stories.dying import Dying
from tests.stories.telling import Log

CONTAINER_S = 2.0
"""Longest time that containers take to start or to stop, once before and once after they do."""
SEARCH_NODES = 1_000
"""Most nodes of a search by HiGHS: no plan depends on the machine's speed."""
DOWN_S = 0.5
"""How long there is no controller after a death."""
DEATH_S = 30.0
"""How long a story waits for the moment of a death; then the controller lives on."""

Result = TypeVar("Result")


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
        durable, epoch = durable_epoch(self.database), ranks[0].key.epoch
        if epoch > durable:
            self.breaches.append(f"{ranks[0].job} starts in epoch {epoch}, the disk has {durable}")
        await answered(CONTAINER_S)
        started = await super().start(ranks, deadline_s)
        await answered(CONTAINER_S)
        return started

    async def stop(
        self,
        job: str,
        grace_s: float,
        servers: Collection[str] | None = None,
        *,
        until: int | None = None,
    ) -> list[RankStatus]:
        await answered(CONTAINER_S)
        stopped = await super().stop(job, grace_s, servers, until=until)
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
        seen = [self._reported(status) for status in await super().observe()]
        await answered()
        return seen

    def _reported(self, status: RankStatus) -> RankStatus:
        """Return what an agent says of a rank: a lost GPU, whenever the rank was started."""
        live = status.state is not RankState.EXITED
        return replace(status, reason=self.sick.get(status.endpoint, "")) if live else status


class LateAggregators(FakeAggregators):
    """Aggregators whose flow tables take a time by seed."""

    def carrier(self, as_name: str) -> Mapping[int, bool]:
        """No light comes from servers that are lost."""
        assert self.engine is not None
        lost = {e.name for e in self._site.endpoints if e.server in self.engine.lost}
        dark = {at.port for e, at in self.light().items() if e in lost and at.aggregator == as_name}
        seen = super().carrier(as_name)
        return {port: up and port not in dark for port, up in seen.items()}

    async def install(self, programs: Mapping[str, FlowProgram], *, deadline_s: float) -> None:
        await answered()
        await super().install(programs, deadline_s=deadline_s)
        await answered()


class StoryRack(Rack):
    """A controller over late fakes. When it dies, another starts on the same store."""

    engine: LateEngine

    def __init__(
        self,
        folder: Path,
        log: Log,
        *,
        spares: Collection[str] = (),
        after_death: Callable[[], None] = lambda: None,
    ) -> None:
        """``after_death`` is called when only the disk has what the controller knew."""
        site = load_site(PAPER)
        super().__init__(
            folder,
            replace(
                site,
                recovery=RecoveryPolicy(frozenset(spares)),
                scheduling=replace(site.scheduling, search_nodes=SEARCH_NODES),
            ),
        )
        self.engine = LateEngine(self.site, database=folder / "controller.sqlite")
        self.away: set[str] = set()
        """Aggregators that do not answer, whichever controller asks."""
        self._after_death = after_death
        self._told = 0
        """The last event that is in the log."""
        self._log = log
        self._dying = Dying(log)
        self._keeper: asyncio.Task[None]
        self._serves = asyncio.Event()

    def aggregators_kind(  # type: ignore[override]
        self,
        site: Any,
        switches: Mapping[str, FakeOcs],
        post: Callable[[AggregatorEvent], None],
    ) -> FakeAggregators:
        """Return the aggregators as another controller finds them."""
        made = LateAggregators(site, switches, post)
        made.away = self.away
        return made

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Start a controller, which has successors; log at the end what all did."""
        self._keeper = asyncio.create_task(self._keep())
        try:
            await self._served()
            await self.until(super().whole)
            yield
        finally:
            self._tell()

    async def _keep(self) -> None:
        with self._dying.hooked():
            while True:
                self._dying.begin()
                with contextlib.suppress(DiedError):
                    await self._dying.do(self.up())
                    self._serves.set()
                    await self._dying.over()
                self._serves.clear()
                self._log.note("the controller dies")
                await self._buried()
                self._after_death()

    async def _buried(self) -> None:
        """Do what the kernel does: commits that it has are written, and files are closed."""
        self._tell()
        self.disk.release()
        await asyncio.sleep(DOWN_S)
        self.store._engine.dispose()
        self.store._acknowledged.close()

    async def whole(self) -> bool:
        return True  # a story goes on while its controller starts

    @property
    def serves(self) -> bool:
        """Whether a controller has started, and not died yet."""
        return self._serves.is_set()

    async def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Let the controller do ``work``. DiedError when none runs, or it dies before the end."""
        if not self._serves.is_set():
            work.close()
            raise DiedError
        return await self._dying.do(work)

    async def death(self, *, turns: int | None = None, points: int | None = None) -> None:
        """Let the controller die after so many turns of the loop, or at the n-th failpoint."""
        self._dying.doom(turns=turns, points=points)
        if await self._dying.over(DEATH_S):
            self._serves.clear()
        self._dying.doom()
        await self._served()

    async def _served(self) -> None:
        """Wait for a controller that has started; raise what keeps all from it."""
        started = asyncio.create_task(self._serves.wait())
        await asyncio.wait([started, self._keeper], return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            self._keeper.result()

    async def rest(self) -> None:
        """Wait until nothing is under way or owed."""
        await self.until(self._rests, 600.0)

    async def _rests(self) -> bool:
        see = self.see
        return not (see.writes or see.transactions.running or see.jobs.handled)

    def _tell(self) -> None:
        for call in self.engine.calls:
            self._log.note(f"engine: {call[0]} {call[1]}")
        self.engine.calls.clear()
        if hasattr(self, "service"):
            for event in self.parts.state.events.since(self._told, 10_000):
                self._log.note(f"event: {event.object} {event.reason} {event.message}")
                self._told = event.id

    async def end(self) -> dict[str, str]:
        """Kill the last controller; return the states of jobs that a restart would find."""
        self._keeper.cancel()
        self._dying.doom(turns=0)
        await asyncio.wait([self._keeper])
        await self._buried()
        store = Store(self.state_dir / "controller.sqlite")
        loaded = await store.load()
        await store.close()
        return {job.name: job.state for job in loaded.jobs}
