"""Brings ranks the parts that they start from, and journals each run before it begins."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import structlog

from agentlink.checkpoints import FetchFault, Folder, GetPart
from agentlink.ranks import RankCheckpoint
from agentlink.values import Scope, VolumeMount
from checkpoints.ledger import Began, Key, Ledger, LedgerRun, Report, fold
from checkpoints.restore import Restore, plan
from checkpoints.rules import parse_rule
from checkpoints.values import Scheme
from controller.base import failpoints
from controller.base.errors import ServiceError
from controller.checkpoints import runs
from controller.checkpoints.book import CheckpointBook, laid_out, was_whole
from controller.checkpoints.books import CheckpointBooks
from controller.checkpoints.inbox import HoldingsInbox
from controller.checkpoints.restoring import blamed, parts_by_server
from controller.devices.checkpoints import CheckpointEngine
from controller.devices.engine import EngineError
from controller.state.kept.checkpoints import CheckpointRecord, CheckpointRun
from controller.state.kept.kinds import row_of
from controller.state.offers import owner_of
from controller.state.records import CheckpointSpec, JobRecord
from controller.state.state import State

log = structlog.get_logger(__name__)

MOST_ROUNDS = 8
"""Plans of one start; each does without what the last one could not get."""
SAME_AGAIN = 2
"""Of those, plans that are tried again although nothing is to blame."""
PAUSE_S = 0.5
FETCH_LEAST_S = 60.0
FETCH_BPS = 10e6
"""Bytes a second below which a fetch is given up."""


@dataclass(slots=True, frozen=True)
class PlannedStart:
    """A restore that is planned, and what is left out of it."""

    restore: Restore
    gets: Mapping[str, tuple[GetPart, ...]]
    """By server."""


class CheckpointStarts:
    """Prepares the starts of jobs' ranks."""

    def __init__(
        self,
        state: State,
        engine: CheckpointEngine,
        books: CheckpointBooks,
        inbox: HoldingsInbox,
        monotonic: Callable[[], float],
    ) -> None:
        self._state = state
        self._engine = engine
        self._books = books
        self._inbox = inbox
        self._monotonic = monotonic
        self._alone: dict[str, asyncio.Lock] = {}
        """By folder: one start or fetch ahead at a time."""

    async def ready(self, name: str) -> Mapping[int, RankCheckpoint]:
        """Fetch what a job's ranks resume from, and make their run durable.

        Returns what each rank needs; nothing for a job without checkpoints. ServiceError when a
        part that exists cannot be brought to a server, or the store refuses.
        """
        job = self._state.jobs[name]
        spec = job.request.checkpoint
        if (
            spec is None
            or not job.folder
            or any(e not in self._state.cables for e in job.endpoints)
        ):
            return {}
        async with self._turn(job.folder):
            record = self._record(job)
            known = next((run for run in record.runs if run.epoch == job.epoch), None)
            if known is not None and known.endpoints == job.endpoints:
                # A start that is repeated: some of its ranks may run, and write, already.
                resumed = known.run.resumed
                if resumed is not None:
                    restore = await self._fetched(job, spec, job.endpoints, only=resumed)
                    if restore.key != resumed:
                        raise self._failed(job, restore.why)
                return self._ranks(record, spec, job, resumed)
            restore = await self._fetched(job, spec, job.endpoints)
            self._report_skipped(job, restore)
            await self._begin(job, spec, restore.key)
            return self._ranks(record, spec, job, restore.key)

    async def prefetch(self, name: str, endpoints: Sequence[str]) -> Restore:
        """Fetch ahead of a start what ranks at ``endpoints`` would resume from.

        ``ready`` then finds it there. ServiceError as there.
        """
        job = self._state.jobs[name]
        spec = job.request.checkpoint
        if spec is None or not job.folder:
            return Restore(None, why="the job keeps no checkpoints")
        async with self._turn(job.folder):
            self._record(job)
            return await self._fetched(job, spec, tuple(endpoints))

    async def planned(self, name: str, endpoints: Sequence[str]) -> Restore:
        """Return what ranks at ``endpoints`` would resume from now; fetches nothing."""
        job = self._state.jobs[name]
        spec, book = job.request.checkpoint, self._books.get(job.folder)
        if spec is None or book is None:
            return Restore(None, why="the job keeps no checkpoints")
        await self._books.up_to_date(job.folder)
        return await self._plan(job, spec, book, book.ledger, endpoints, store=True)

    def store_of(self, job: JobRecord) -> VolumeMount | None:
        """Return the job's store as servers mount it; None without one."""
        spec = job.request.checkpoint
        volume = None if spec is None else self._state.site.volumes.get(spec.store)
        if volume is None:
            return None
        return VolumeMount(
            volume=volume.name,
            path="",  # it is in no container
            read_only=False,
            scope=Scope(volume.per),
            owner=owner_of(volume, job.request.project, job.name),
            quota_bytes=volume.quota_bytes,
            read_bps=volume.read_bps,
            write_bps=volume.write_bps,
        )

    def store_up(self, job: JobRecord, endpoints: Sequence[str]) -> bool:
        """Whether a server of ``endpoints`` that answers offers the job's store."""
        store, answering = self.store_of(job), self._books.answering()
        return store is not None and any(
            self._state.offers.lack(server, store.volume) is None
            for server in self._servers(endpoints)
            if server in answering
        )

    # --- plan and fetch -------------------------------------------------------------------

    async def _fetched(
        self,
        job: JobRecord,
        spec: CheckpointSpec,
        endpoints: Sequence[str],
        only: Key | None = None,
    ) -> Restore:
        """Plan until everything of a plan is there; with ``only`` that step or none."""
        record = self._record(job)
        await self._inbox.await_caught_up(record.servers & self._books.endpoints.keys())
        book = await self._books.up_to_date(job.folder)
        if book is None:
            raise self._failed(job, "its record is gone")
        book.restoring += 1
        try:
            if only is None:
                await self._await_silent(job, spec, book, endpoints)
            return await self._rounds(job, spec, book, endpoints, only)
        finally:
            book.restoring -= 1

    async def _await_silent(
        self, job: JobRecord, spec: CheckpointSpec, book: CheckpointBook, endpoints: Sequence[str]
    ) -> None:
        """Wait for servers while a newer step can be had with them only, until they count as lost.

        An agent that restarts is silent for seconds; what it holds is not lost.
        """
        held = self._record(job).servers
        while silent := held & self._books.awaited(self._monotonic()):
            without = await self._plan(job, spec, book, book.ledger, endpoints, store=True)
            known = await self._plan(
                job, spec, book, book.ledger, endpoints, store=True, also=silent
            )
            if known.key is None or (without.key is not None and without.key >= known.key):
                return
            log.info("start_waits_for_servers", job=job.name, servers=sorted(silent))
            await asyncio.sleep(PAUSE_S)
            await self._inbox.await_caught_up(held & self._books.endpoints.keys())

    async def _rounds(
        self,
        job: JobRecord,
        spec: CheckpointSpec,
        book: CheckpointBook,
        endpoints: Sequence[str],
        only: Key | None,
    ) -> Restore:
        missing: list[Report] = []
        skipped: list[str] = []
        store, again = True, 0
        for _ in range(MOST_ROUNDS):
            ledger = reduce(fold, missing, book.ledger)
            if only is not None:
                steps = {k: step for k, step in ledger.steps.items() if k == only}
                ledger = replace(ledger, steps=steps)
            restore = await self._plan(job, spec, book, ledger, endpoints, store=store)
            if restore.key is None:
                return replace(restore, why="; ".join([restore.why, *skipped]))
            mount = self.store_of(job)
            places = self._books.places()
            gets = await book.compute(partial(parts_by_server, restore, endpoints, places, mount))
            await self._register_folders(job, gets, endpoints)
            faults = await self._fetch(job, spec, restore.key, gets)
            if not faults:
                return restore
            asked = [get for some in gets.values() for get in some]
            lacking, no_store = blamed(restore.key, asked, faults)
            skipped = [fault.message for fault in faults[:4]]
            text = f"step {restore.key.step} of run {restore.key.epoch}: {'; '.join(skipped)}"
            log.warning("checkpoint_not_fetched", job=job.name, why=text)
            store = store and not no_store
            missing += lacking
            if not lacking and not no_store:
                again += 1
                if again > SAME_AGAIN:
                    break
                await asyncio.sleep(PAUSE_S)
        raise self._failed(job, "; ".join(skipped))

    async def _plan(
        self,
        job: JobRecord,
        spec: CheckpointSpec,
        book: CheckpointBook,
        ledger: Ledger,
        endpoints: Sequence[str],
        *,
        store: bool,
        also: frozenset[str] = frozenset(),
    ) -> Restore:
        """Plan with the servers that answer, and ``also`` others."""
        places, servers = self._books.places(), self._books.answering() | also
        up = store and self.store_up(job, endpoints)
        gathers = parse_rule(spec.complete).gathers
        return await book.compute(
            partial(plan, ledger, endpoints, places, servers, store=up, gathers=gathers)
        )

    async def _register_folders(
        self, job: JobRecord, gets: Mapping[str, object], endpoints: Sequence[str]
    ) -> None:
        """Make durable which servers get folders, before they do. ServiceError."""
        record, book = self._record(job), self._books.get(job.folder)
        if book is not None:
            book.allowed.update(endpoints)
        if gets.keys() <= record.servers:
            return
        await self._state.intend(
            {row_of(record): lambda now: replace(now, servers=now.servers | gets.keys())}
        )

    async def _fetch(
        self,
        job: JobRecord,
        spec: CheckpointSpec,
        key: Key,
        gets: Mapping[str, tuple[GetPart, ...]],
    ) -> list[FetchFault]:
        record = self._record(job)
        folder = Folder(job.folder, record.key, spec.local.where, spec.local.size_bytes)
        async with failpoints.around("fetch"):
            found = await asyncio.gather(
                *(self._fetch_one(server, folder, key, some) for server, some in gets.items())
            )
        return [fault for faults in found for fault in faults]

    async def _fetch_one(
        self, server: str, folder: Folder, key: Key, gets: Sequence[GetPart]
    ) -> Sequence[FetchFault]:
        deadline_s = FETCH_LEAST_S + sum(get.bytes for get in gets) / FETCH_BPS
        done, faults = False, tuple[FetchFault, ...]()
        try:
            fetch = self._engine.fetch(server, folder, key, gets, deadline_s)
            async with asyncio.timeout(deadline_s), contextlib.aclosing(fetch) as steps:
                async for step in steps:
                    done, faults = step.done, step.faults
        except (EngineError, TimeoutError) as error:
            text = f"{server}: {error or 'time-out'}"
            return [FetchFault(gets[0].rank, gets[0].part, "", text)]
        if not done:
            text = f"{server} does not say that it has everything"
            return [FetchFault(gets[0].rank, gets[0].part, "", text)]
        return faults

    # --- the run --------------------------------------------------------------------------

    async def _begin(self, job: JobRecord, spec: CheckpointSpec, key: Key | None) -> None:
        """Make a run durable, before any of its ranks starts. ServiceError."""
        state, book = self._state, self._books.get(job.folder)
        if book is None:
            raise self._failed(job, "its record is gone")
        places = self._books.places()
        at = tuple(places[endpoint] for endpoint in job.endpoints)
        layout, why = await book.compute(partial(laid_out, spec, at))
        run = LedgerRun(len(job.endpoints), layout, key, spec.identical)
        made = CheckpointRun(
            epoch=job.epoch, run=run, endpoints=job.endpoints, began_at=state.clock()
        )
        ledger, servers = book.ledger, self._servers(job.endpoints)

        def begun(now: CheckpointRecord) -> CheckpointRecord:
            now = runs.added(now, made, ledger)
            return replace(now, servers=now.servers | servers, remove_after=None)

        await state.intend({row_of(self._record(job)): begun}, point="save-run")
        await book.fold([Began(job.epoch, run)])
        book.laid_at, book.unprotected_why = at, why
        book.told.clear()
        if why and spec.copies.scheme is not Scheme.SINGLE:
            text = f"its checkpoints are kept without copies: {why}"
            state.events.add("warning", f"job/{job.name}", "CheckpointsNotApart", text)

    def _report_skipped(self, job: JobRecord, restore: Restore) -> None:
        """Add an event when not the newest step is loaded, or none."""
        about, record = f"job/{job.name}", self._record(job)
        book = self._books.get(job.folder)
        if restore.key is not None and restore.why:
            text = f"it goes on from step {restore.key.step}, not from a newer one: {restore.why}"
            self._state.events.add("warning", about, "CheckpointSkipped", text)
        elif restore.key is None and book is not None and record.runs:
            loaded = any(run.run.resumed for run in record.runs)
            stepped = any(run.stepped for run in record.runs)
            known = any(was_whole(book.ledger, key) for key in book.ledger.steps)
            silent = sorted(
                name
                for name in record.servers
                if name in self._books.endpoints and name not in self._books.answering()
            )
            if loaded or known or (stepped and silent):
                away = f"; {', '.join(silent[:8])} did not answer" if silent else ""
                text = f"{restore.why}{away}"
                self._state.events.add("error", about, "CheckpointLost", text)

    def _ranks(
        self, record: CheckpointRecord, spec: CheckpointSpec, job: JobRecord, key: Key | None
    ) -> Mapping[int, RankCheckpoint]:
        one = RankCheckpoint(
            folder=record.folder,
            ranks=len(job.endpoints),
            rule=spec.complete,
            where=spec.local.where,
            size_bytes=spec.local.size_bytes,
            key=record.key,
            resumed=key,
        )
        return dict.fromkeys(range(len(job.endpoints)), one)

    # --- helpers --------------------------------------------------------------------------

    def _servers(self, endpoints: Sequence[str]) -> frozenset[str]:
        cables = (self._state.cables.get(name) for name in endpoints)
        return frozenset(cable.server for cable in cables if cable is not None)

    def _record(self, job: JobRecord) -> CheckpointRecord:
        record = self._state.checkpoints.get(job.folder)
        if record is None:
            raise self._failed(job, "what was known of them was lost")
        return record

    def _turn(self, folder: str) -> asyncio.Lock:
        for name in [n for n in self._alone if n not in self._state.checkpoints]:
            if not self._alone[name].locked():
                del self._alone[name]
        return self._alone.setdefault(folder, asyncio.Lock())

    def _failed(self, job: JobRecord, why: str) -> ServiceError:
        return ServiceError(
            "failed",
            f"the checkpoints of job {job.name} cannot be brought to its ranks: {why}",
            object=f"job/{job.name}",
            hint=f"see `lightloom checkpoints {job.name}`",
        )
