"""Keeps jobs' checkpoints: what servers hold, copies, what goes to a store, and what may go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from agentlink.ranks import RankCheckpoint
from base import clock
from checkpoints.ledger import Key, Ledger
from checkpoints.ledger import State as Safety
from checkpoints.restore import Restore
from checkpoints.schemes import not_apart
from checkpoints.values import Places, Scheme
from controller.base.tasks import Tasks
from controller.checkpoints.book import CheckpointBook, complete_of, laid_out, safety_of, sizes_of
from controller.checkpoints.books import CheckpointBooks
from controller.checkpoints.inbox import HoldingsInbox
from controller.checkpoints.orders import KeepOrders
from controller.checkpoints.protection import (
    Flush,
    RunningRanks,
    Wanted,
    droppable,
    holders_of,
    next_flush,
    pace_bps,
    target,
    wanted,
)
from controller.checkpoints.removal import Removal
from controller.checkpoints.starts import CheckpointStarts
from controller.checkpoints.warnings import warnings
from controller.devices.checkpoints import CheckpointEngine
from controller.state.kept.checkpoints import CheckpointRecord, CheckpointRun, RunEnd
from controller.state.records import CheckpointSpec, JobRecord
from controller.state.state import State

LOOK_EVERY_S = 1.0
MOST_NAMED = 8
"""Steps that an event names."""
PAUSE_S = 0.1
"""Between two looks: news of many servers come together."""


@dataclass(slots=True, frozen=True)
class _JobCheck:
    """One job at one look."""

    record: CheckpointRecord
    book: CheckpointBook
    job: JobRecord
    spec: CheckpointSpec
    places: Places
    answering: frozenset[str]
    """Servers that answer."""

    @property
    def run(self) -> CheckpointRun | None:
        """The present run; None before it is known, or when an endpoint left the site file."""
        run = self.record.runs[-1] if self.record.runs else None
        if run is None or run.epoch != self.job.epoch:
            return None
        return run if all(name in self.places for name in run.endpoints) else None


class CheckpointKeeper:
    """All jobs' checkpoints. Belongs to the loop."""

    def __init__(
        self,
        state: State,
        engine: CheckpointEngine,
        tasks: Tasks,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._state = state
        self._orders = KeepOrders(engine, tasks, monotonic)
        self.books = CheckpointBooks(state)
        self.inbox = HoldingsInbox(state, engine, self.books, self._failed, monotonic)
        self.starts = CheckpointStarts(state, engine, self.books, self.inbox, monotonic)
        self._removal = Removal(state, engine, self.books, self.inbox, monotonic)
        self._pace_bps = pace_bps(state.site)
        self._monotonic = monotonic

    # --- questions and reports of other parts ----------------------------------------------

    async def ready(self, name: str) -> Mapping[int, RankCheckpoint]:
        """Fetch what a job's ranks resume from and make their run durable. ServiceError."""
        return await self.starts.ready(name)

    async def prefetch(self, name: str, endpoints: Sequence[str]) -> Restore:
        """Fetch ahead what ranks at ``endpoints`` would resume from. ServiceError."""
        return await self.starts.prefetch(name, endpoints)

    async def planned(self, name: str, endpoints: Sequence[str]) -> Restore:
        """Return what ranks at ``endpoints`` would resume from now; fetches nothing."""
        return await self.starts.planned(name, endpoints)

    def stepped(self, name: str) -> None:
        """Note that a job's present run made a step after what it had loaded."""
        self.books.stepped(name)

    def ended(self, name: str, end: RunEnd) -> None:
        """Note how a job's present run ended, before it starts again; the first end counts."""
        self.books.ended(name, end)

    def ledger(self, name: str) -> Ledger | None:
        """Return what is known of a job's checkpoints; None when it has none."""
        found = self.books.of(name)
        return None if found is None else found[1].ledger

    def places(self) -> Places:
        """Return where every endpoint is now."""
        return self.books.places()

    def answering(self) -> frozenset[str]:
        """Return the servers that answer now."""
        return self.books.answering()

    def newest(self, name: str, *, protected: bool = False) -> Key | None:
        """Return a job's newest written (or protected) step; None without one."""
        ledger = self.ledger(name)
        if ledger is None:
            return None
        enough = {Safety.PROTECTED, Safety.PERSISTENT} | (set() if protected else {Safety.WRITTEN})
        safety = safety_of(ledger, self.places())
        return max((key for key, found in safety.items() if found in enough), default=None)

    def protected(self, job: str) -> tuple[float | None, str] | None:
        """Return since when the newest written step is protected, or is not, and why not.

        The reason is empty while it is protected; None before a step is written. As of the last
        look, which is at most a second ago.
        """
        found = self.books.of(job)
        sums = None if found is None else found[1].sums
        return None if sums is None or sums.newest is None else (sums.since, sums.why)

    # --- life -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Look after all jobs' checkpoints until cancelled."""
        while True:
            self.inbox.news.clear()
            if self._state.ready and not self._state.command_lost:
                await self.check()
            await asyncio.sleep(PAUSE_S)
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self.inbox.news.wait()
            except TimeoutError:
                pass

    async def run_removals(self) -> None:
        """Remove what no job needs any more until cancelled."""
        await self._removal.run()

    async def check(self) -> None:
        """Look once at every job."""
        self.books.note_silence(self._monotonic())
        places, answering = self.books.places(), self.books.answering()
        for record, book in self.books:
            await asyncio.sleep(0)  # one job at a time: a site has hundreds
            found = self.books.job(record)
            if found is None or found[0].ended:
                self._cancel(record, answering)
            else:
                await self._check_job(_JobCheck(record, book, *found, places, answering))

    async def _check_job(self, at: _JobCheck) -> None:
        book, job, state = at.book, at.job, self._state
        await self._lay_out(at)
        ledger = book.ledger
        safety, complete, sizes = await book.compute(
            lambda: (
                safety_of(ledger, at.places),
                complete_of(ledger, at.places),
                sizes_of(ledger),
            )
        )
        known = all(self.inbox.caught_up(name) for name in at.record.servers & at.answering)
        book.advance(safety, state.clock(), seen=known)
        book.counted.update(complete)
        book.sum_up(safety, sizes)
        self._flush(at, safety)
        self._close(at)
        moving = state.transactions.of_job(job.name) is not None
        if job.state == "running" and not moving:
            await self._protect(at, safety)
        if known and not book.restoring:
            await self._prune(at)
        run = at.run
        if run is not None and job.state == "running":
            for warning in warnings(book, run, at.spec, safety, state.clock()):
                state.events.add("warning", f"job/{job.name}", *warning)

    async def _lay_out(self, at: _JobCheck) -> None:
        """Choose a new layout when light moved and the copies are not apart any more."""
        run, book = at.run, at.book
        if run is None or at.spec.copies.scheme is Scheme.SINGLE:
            return
        there = tuple(at.places[name] for name in run.endpoints)
        if there == book.laid_at or self._state.transactions.of_job(at.job.name) is not None:
            return
        layout, book.laid_at = run.run.layout, there
        if layout.scheme is at.spec.copies.scheme and not not_apart(layout, there):
            book.unprotected_why = ""
            return
        made, why = await book.compute(partial(laid_out, at.spec, there))
        book.unprotected_why = why
        now = self._state.checkpoints.get(book.folder)
        if made == layout or now is None:
            return
        self.books.lay_out(now, run.epoch, made)
        await book.relay(run.epoch, made)
        about = f"job/{at.job.name}"
        if why:
            text = f"its checkpoints are kept without copies: {why}"
            self._state.events.add("warning", about, "CheckpointsNotApart", text)
        else:
            text = "its light moved: copies of its checkpoints lie elsewhere from now on"
            self._state.events.add("info", about, "CheckpointsLaidOut", text)

    def _failed(self, folder: str, server: str, key: Key) -> None:
        """Choose another step to copy: this one may never succeed.

        Transfers of a step that was given up before fail as well, because its parts are dropped:
        they say nothing of the step that is being copied now.
        """
        book = self.books.get(folder)
        if book is None or key not in {book.copying, book.flushing}:
            return
        self._orders.failed(folder, server)
        if key == book.copying:
            book.copying = None

    # --- orders ---------------------------------------------------------------------------

    def _flush(self, at: _JobCheck, safety: Mapping[Key, Safety]) -> None:
        book, every = at.book, at.spec.every
        if not every or self.starts.store_of(at.job) is None:
            book.flushing = None
            return
        counted = sorted(book.counted, reverse=True)
        book.flushing = next_flush(book.flushing, safety, counted, every)

    async def _protect(self, at: _JobCheck, safety: Mapping[Key, Safety]) -> None:
        run, book = at.run, at.book
        if run is None or run.epoch not in book.ledger.runs:
            return
        ips = {name: self._state.cables[name].ip for name in run.endpoints}
        layout = book.ledger.runs[run.epoch].layout
        running = RunningRanks(run.epoch, run.endpoints, ips, layout)
        store = self.starts.store_of(at.job)
        flush = None if book.flushing is None or store is None else Flush(book.flushing, store)
        before = book.copying
        chosen = await book.compute(
            partial(target, book.ledger, running, at.places, safety, before)
        )
        if book.copying != before:  # its copy failed meanwhile: the next look chooses another
            return
        book.copying = chosen
        found: Wanted = await book.compute(
            partial(wanted, book.ledger, running, at.places, chosen, flush)
        )
        for server in {at.places[name].server for name in run.endpoints} & at.answering:
            if keeps := found.get(server):
                self._orders.keep(book.folder, server, keeps, self._pace_bps)
            else:
                self._orders.done(book.folder, server)

    def _cancel(self, record: CheckpointRecord, answering: frozenset[str]) -> None:
        """End what servers still keep for a job that has ended."""
        for server in record.servers & answering:
            self._orders.keep(record.folder, server, (), 0)

    def _close(self, at: _JobCheck) -> None:
        """Have a step summed that awaited its coordinator, once one part of it is whole."""
        steps, ready = at.book.ledger.steps, dict[str, list[Key]]()
        for key, waiting in at.book.awaits.items():
            if key in steps and any(part.own for part in steps[key].parts.values()):
                for server in set(waiting.values()) & at.answering:
                    ready.setdefault(server, []).append(key)
        for server, keys in ready.items():
            self._orders.close(at.book.folder, server, keys)

    async def _prune(self, at: _JobCheck) -> None:
        ledger, book = at.book.ledger, at.book
        copying = () if book.copying is None else (book.copying,)
        stays = book.counted.union(copying)
        going = await book.compute(
            partial(
                droppable,
                ledger,
                at.spec.local.keep,
                at.places,
                stays,
                book.flushing,
                all_told=at.record.servers & self.books.endpoints.keys() <= at.answering,
            )
        )
        unknown = self._state.unknown
        drops: dict[str, set[Key]] = {}
        for server, strays in book.stray.items():
            kept = {key for key in strays if key.epoch in unknown}
            if kept and server not in book.told_unknown:
                book.told_unknown.add(server)
                steps = ", ".join(map(str, sorted({key.step for key in kept})[:MOST_NAMED]))
                text = (
                    f"{server} has steps ({steps}) of runs that this store does not know: they are"
                    " kept. Put a newer copy of the store in place to use them, or give them up"
                    " with `lightloom store accept`"
                )
                self._state.events.add("warning", f"job/{at.job.name}", "UnknownSteps", text)
            drops[server] = strays - kept
        for key in going:
            for name in holders_of(ledger.steps[key]) & at.places.keys():
                drops.setdefault(at.places[name].server, set()).add(key)
        for server, keys in drops.items():
            if keys and server in at.answering and self.inbox.caught_up(server):
                self._orders.drop(book.folder, server, sorted(keys))
