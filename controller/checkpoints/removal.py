"""Removes jobs' checkpoints a while after their end, and folders of jobs that are not known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from base import clock
from controller.base.errors import ServiceError
from controller.checkpoints.books import CheckpointBooks
from controller.checkpoints.inbox import HoldingsInbox
from controller.devices.checkpoints import CheckpointEngine
from controller.devices.engine import EngineError
from controller.state.intend import keys
from controller.state.intend.intentions import constant
from controller.state.kept.checkpoints import CheckpointRecord
from controller.state.kept.kinds import row_of
from controller.state.state import State

log = structlog.get_logger(__name__)

KEEP_S = 900.0
"""How long an ended job's checkpoints stay; so long also a folder that belongs to no known job."""
GIVE_UP_S = 86400.0
"""After this a server that does not answer keeps them; it is told to forget them when it is back,
as they belong to no known job then."""
LOOK_EVERY_S = 5.0
CALL_TIMEOUT_S = 30.0
AT_ONCE = 16
"""Calls in one round."""


class Removal:
    """Removes what no job needs any more."""

    def __init__(
        self,
        state: State,
        engine: CheckpointEngine,
        books: CheckpointBooks,
        inbox: HoldingsInbox,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._state = state
        self._engine = engine
        self._books = books
        self._inbox = inbox
        self._monotonic = monotonic
        self._told: frozenset[str] = frozenset()
        """Servers whose unknown folders are kept, and were reported."""
        self._later: dict[tuple[str, str], float] = {}
        """By server and folder: not before this time, after a failure."""

    async def run(self) -> None:
        """Remove what is due until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.check()

    async def check(self) -> None:
        """Remove once what is due."""
        state = self._state
        if not state.ready or state.command_lost or state.suspect:
            return
        now, steady = state.clock(), self._monotonic()
        self._later = {at: due for at, due in self._later.items() if due > steady}
        for record, _ in self._books:
            found = self._books.job(record)
            gone = found is None or found[0].ended
            if not gone or state.changing(keys.job(record.job)):
                continue
            if record.remove_after is None:
                ended = None if found is None else found[0].finished_at
                after = (now if ended is None else min(ended, now)) + KEEP_S
                record = self._books.change(record.folder, remove_after=after)  # noqa: PLW2901
            if record.remove_after is not None and record.remove_after <= now:
                await self._remove(record, now)
        await self._forget_unknown(steady)

    async def _remove(self, record: CheckpointRecord, now: float) -> None:
        reached = self._books.answering()
        left = record.servers & self._books.endpoints.keys()
        asked = [(server, record.folder) for server in sorted(left & reached)]
        done = await self._forget(asked)
        left -= {server for server, _ in done}
        late = record.remove_after is not None and now - record.remove_after > GIVE_UP_S
        if left and not late:
            if left != record.servers:
                self._books.change(record.folder, servers=left)
            return
        try:
            await self._state.intend({row_of(record): constant(None)})
        except ServiceError as error:
            log.error("checkpoints_not_forgotten", folder=record.folder, error=error.message)
            return
        self._books.forget(record.folder)
        self._forgotten(record.folder)
        text = "its checkpoints are removed: it has ended"
        self._state.events.add("info", f"job/{record.job}", "CheckpointsRemoved", text)

    def _forgotten(self, folder: str) -> None:
        self._later = {at: due for at, due in self._later.items() if at[1] != folder}

    async def _forget_unknown(self, steady: float) -> None:
        jobs = {job.folder for job in self._state.jobs.values()}
        reached, due = self._books.answering(), list[tuple[str, str]]()
        kept = dict[str, int]()
        for server, folder, since in self._inbox.unknown():
            if folder in self._state.checkpoints or folder in jobs:
                self._inbox.forget(server, folder)
            elif self._state.unknown:
                kept[server] = kept.get(server, 0) + 1
            elif since + KEEP_S <= steady and server in reached:
                due.append((server, folder))
        self._tell_kept(kept)
        for server, folder in await self._forget(due[:AT_ONCE]):
            self._inbox.forget(server, folder)

    def _tell_kept(self, kept: Mapping[str, int]) -> None:
        """Report once per server that it keeps checkpoints of unknown jobs."""
        for server in sorted(kept.keys() - self._told):
            text = (
                f"it has checkpoints of {kept[server]} jobs that this store does not know: they are"
                " kept. Put a newer copy of the store in place to use them, or give them up with"
                " `lightloom store accept`"
            )
            self._state.events.add("warning", f"server/{server}", "UnknownCheckpoints", text)
        self._told = frozenset(kept)

    async def _forget(self, places: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Have servers forget folders; return those that did."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(at: tuple[str, str]) -> bool:
            server, folder = at
            if at in self._later:
                return False
            try:
                async with gate:
                    await self._engine.forget_checkpoints(server, folder, CALL_TIMEOUT_S)
            except EngineError as error:
                self._later[at] = self._monotonic() + 60.0
                log.warning("checkpoints_not_removed", server=server, error=str(error))
                return False
            return True

        done = await asyncio.gather(*(one(at) for at in places))
        return [at for at, is_done in zip(places, done, strict=True) if is_done]
