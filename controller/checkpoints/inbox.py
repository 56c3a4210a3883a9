"""Merges the servers' reports of stored parts into the books. Reports are not trusted.

Reports count for endpoints at which the job ran, or that were ordered to keep parts of it. A
server's earlier reports count until it has listed everything again, so that a reconnection makes
nothing look lost; only memory is gone at once when its machine has started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import structlog

from agentlink.checkpoints import Holding, HoldingKind
from agentlink.values import Where
from base import clock
from checkpoints.ledger import NOTHING, Key, Report, ServerLost
from controller.checkpoints.book import CheckpointBook
from controller.checkpoints.books import CheckpointBooks
from controller.devices.checkpoints import CheckpointEngine, HoldingsNews
from controller.state.state import State

log = structlog.get_logger(__name__)

MOST_TOLD = 500_000
"""Holdings that one server may report before it has listed everything."""
MOST_UNKNOWN = 4096
"""Unknown folders of one server that are remembered."""
CATCH_UP_TIMEOUT_S = 3.0
"""Longest wait for servers that hold something and have not listed everything."""

Failed = Callable[[str, str, Key], None]
"""Takes a folder, a server that could not keep a part of a step, and the step."""


@dataclass(slots=True)
class _Server:
    """The reports of one server."""

    boot_id: str = ""
    caught_up: bool = False
    """It has listed everything once since the start of the controller."""
    telling: bool = False
    """It lists everything again: ``told`` counts once the list is complete."""
    told: dict[str, list[Holding]] = field(default_factory=dict)
    """By folder."""
    count: int = 0
    given_up: bool = False
    """It was waited for in vain, and has not begun a list since."""
    unknown: dict[str, float] = field(default_factory=dict)
    """Folders of no known job, and since when, in seconds of the steady clock."""


class HoldingsInbox:
    """Receives the servers' reports of stored parts. Belongs to the loop."""

    def __init__(
        self,
        state: State,
        engine: CheckpointEngine,
        books: CheckpointBooks,
        failed: Failed,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._state = state
        self._engine = engine
        self._books = books
        self._failed = failed
        self._monotonic = monotonic
        self._servers = {server.name: _Server() for server in state.site.servers}
        self._heard = asyncio.Condition()
        self.news = asyncio.Event()
        """Set with everything that is new."""

    async def run(self) -> None:
        """Receive reports until cancelled."""
        async for news in self._engine.holdings():
            await self._receive(news)
            await asyncio.sleep(0)  # many servers may report at once

    # --- what is known --------------------------------------------------------------------

    def caught_up(self, server: str) -> bool:
        """Whether a server has listed everything once."""
        return server in self._servers and self._servers[server].caught_up

    async def await_caught_up(self, servers: Collection[str]) -> None:
        """Wait until servers have listed everything, except those known to be silent."""
        answering = self._books.answering()

        def missing() -> list[str]:
            return [
                name
                for name in servers
                if (server := self._servers.get(name)) is not None
                and not server.caught_up
                and not (server.given_up and name not in answering)
            ]

        try:
            async with asyncio.timeout(CATCH_UP_TIMEOUT_S), self._heard:
                await self._heard.wait_for(lambda: not missing())
        except TimeoutError:
            for name in missing():
                self._servers[name].given_up = True
            log.warning("servers_do_not_tell_their_checkpoints", servers=sorted(missing()))

    def unknown(self) -> list[tuple[str, str, float]]:
        """Return server and folder of what belongs to no known job, and since when."""
        return [
            (name, folder, since)
            for name, server in self._servers.items()
            for folder, since in server.unknown.items()
        ]

    def forget(self, server: str, folder: str) -> None:
        """Note that a folder of no known job is gone from a server."""
        self._servers[server].unknown.pop(folder, None)

    # --- news -----------------------------------------------------------------------------

    async def _receive(self, news: HoldingsNews) -> None:
        server = self._servers.get(news.server)
        if server is None:
            return
        self._state.saw_epochs(holding.key.epoch for holding in news.holdings)
        if news.began:
            await self._began(server, news)
        if server.telling:
            self._keep(server, news)
        else:
            await self._changes(news.server, server, news.holdings)
        if news.caught_up and server.telling:
            await self._caught_up(news.server, server)
        self.news.set()

    async def _began(self, server: _Server, news: HoldingsNews) -> None:
        started = bool(server.boot_id and news.boot_id and server.boot_id != news.boot_id)
        server.boot_id = news.boot_id or server.boot_id
        server.telling, server.told, server.count, server.given_up = True, {}, 0, False
        if not started:
            return
        gone = ServerLost(self._books.endpoints[news.server])
        for record, book in self._books:
            job = self._books.job(record)
            if job is not None and job[1].local.where is Where.MEMORY:
                await book.fold([gone])

    def _keep(self, server: _Server, news: HoldingsNews) -> None:
        for holding in news.holdings:
            if holding.folder not in self._state.checkpoints:
                self._note_unknown(server, holding)
            elif server.count < MOST_TOLD:
                server.count += 1
                server.told.setdefault(holding.folder, []).append(holding)

    async def _changes(self, name: str, server: _Server, holdings: Iterable[Holding]) -> None:
        by_folder: dict[str, list[Holding]] = {}
        for holding in holdings:
            if holding.folder not in self._state.checkpoints:
                self._note_unknown(server, holding)
            else:
                by_folder.setdefault(holding.folder, []).append(holding)
        for folder, some in by_folder.items():
            await self._fold(name, folder, some, [])

    async def _caught_up(self, name: str, server: _Server) -> None:
        told, server.told, server.telling = server.told, {}, False
        for record, book in self._books:
            if record.folder in told or name in record.servers:
                book.restart(name, self._books.endpoints[name])
                first: list[Report] = [ServerLost(self._books.endpoints[name])]
                await self._fold(name, record.folder, told.get(record.folder, []), first)
        server.caught_up = True
        self._state.reports.heard(name, "checkpoints")
        async with self._heard:
            self._heard.notify_all()

    async def _fold(
        self, server: str, folder: str, holdings: Iterable[Holding], first: list[Report]
    ) -> None:
        book, record = self._books.get(folder), self._state.checkpoints.get(folder)
        if book is None or record is None:
            return
        ours = self._books.endpoints[server]
        believed = [
            h for h in holdings if h.server == server and h.endpoint in ours and book.believes(h)
        ]
        reports = [report for h in believed if (report := book.report(h)) is not None]
        await book.fold([*first, *reports])
        for holding in believed:
            book.note(holding)
            if holding.kind in {HoldingKind.MISSING, HoldingKind.REFUSED} and not first:
                self._failed(folder, server, holding.key)
        if believed and server not in record.servers:
            now = self._state.checkpoints.get(folder)
            if now is not None:
                self._books.change(folder, servers=now.servers | {server})
        self._note_first_step(folder, book, believed)

    def _note_first_step(
        self, folder: str, book: CheckpointBook, holdings: Iterable[Holding]
    ) -> None:
        """Note the first step of the present run: a part that is newer than what it loaded."""
        record = self._state.checkpoints.get(folder)
        if record is None or not record.runs or record.runs[-1].stepped:
            return
        run = record.runs[-1]
        loaded = run.run.resumed or NOTHING
        own = (h.key for h in holdings if h.kind is HoldingKind.OWN)
        if any(k.epoch == run.epoch and k > loaded and k in book.ledger.steps for k in own):
            self._books.step_seen(record)

    def _note_unknown(self, server: _Server, holding: Holding) -> None:
        if len(server.unknown) < MOST_UNKNOWN:
            server.unknown.setdefault(holding.folder, self._monotonic())
