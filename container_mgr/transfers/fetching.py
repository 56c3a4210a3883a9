"""Puts parts where ranks will start. What is in threads blocks; the rest belongs to the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentlink.checkpoints import (
    FetchFault,
    FetchProgress,
    Folder,
    GetFrom,
    GetLocal,
    GetPart,
    GetRebuilt,
    GetStored,
    HoldingKind,
    Source,
)
from agentlink.values import VolumeMount
from checkpoints import schemes
from checkpoints.ledger import Key, Member
from checkpoints.manifest import Manifest
from container_mgr.checkpoints.contract import Holder, Receiving
from container_mgr.checkpoints.values import PartPlace
from container_mgr.transfers import part_sources, parts, pulling, stores, threads
from container_mgr.transfers.part_sources import Local, PartSource, PeerRoutes, check_manifest
from container_mgr.transfers.parts import DamagedPartError, Files
from container_mgr.transfers.pulling import EndedError, PullError, Stop
from container_mgr.values import AgentError

PROGRESS_S = 0.2
AT_ONCE = 8
"""Parts of one fetch that are moved at a time."""

Store = Callable[[VolumeMount], Awaitable[Path]]


@dataclass(slots=True, eq=False)
class _Run:
    """One fetch, which may have several listeners."""

    folder: Folder
    key: Key
    gets: tuple[GetPart, ...]
    stop: Stop = field(default_factory=Stop)
    lock: threading.Lock = field(default_factory=threading.Lock)
    bytes_done: int = 0
    faults: list[FetchFault] = field(default_factory=list)

    def add(self, count: int) -> None:
        with self.lock:
            self.bytes_done += count

    def progress(self, *, done: bool) -> FetchProgress:
        total = sum(get.bytes for get in self.gets)
        faults = tuple(self.faults) if done else ()
        return FetchProgress(min(self.bytes_done, total), total, done, faults)


class Fetching:
    """All fetches of an agent. Belongs to the event loop."""

    def __init__(self, holder: Holder, reach: Callable[[Folder], PeerRoutes], store: Store) -> None:
        """``reach`` dials over the management network; ``store`` finds a store's directory."""
        self._holder = holder
        self._reach = reach
        self._store = store
        self._runs: dict[_Run, asyncio.Task[None]] = {}

    async def fetch(
        self, folder: Folder, key: Key, gets: Sequence[GetPart]
    ) -> AsyncIterator[FetchProgress]:
        """See :meth:`Transfers.fetch`. One of other parts for the same ranks ends. AgentError."""
        run = self._running(folder, key, tuple(gets)) or self._begin(folder, key, gets)
        task = self._runs[run]
        while not (await asyncio.wait({task}, timeout=PROGRESS_S))[0]:
            yield run.progress(done=False)
        task.result()
        yield run.progress(done=True)

    async def close(self) -> None:
        """End all fetches."""
        await self._end(list(self._runs))

    def _running(self, folder: Folder, key: Key, gets: tuple[GetPart, ...]) -> _Run | None:
        wanted = (folder, key, gets)
        return next((r for r in self._runs if (r.folder, r.key, r.gets) == wanted), None)

    def _begin(self, folder: Folder, key: Key, gets: Sequence[GetPart]) -> _Run:
        run = _Run(folder, key, tuple(gets))
        mine = {get.endpoint for get in gets}
        others = [
            one
            for one in self._runs
            if one.folder.name == folder.name and mine & {get.endpoint for get in one.gets}
        ]
        task = self._runs[run] = asyncio.create_task(self._run(run, others))
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return run

    async def _end(self, runs: Sequence[_Run]) -> None:
        for run in runs:
            run.stop.stop()
        tasks = [self._runs[run] for run in runs if run in self._runs]
        if tasks:
            await asyncio.wait(tasks, timeout=threads.ANSWER_S)

    async def _run(self, run: _Run, others: Sequence[_Run]) -> None:
        try:
            await self._end(others)
            await self._holder.make(run.folder)
            await self._holder.expect(run.folder.name, {get.endpoint for get in run.gets})
            room = asyncio.Semaphore(AT_ONCE)
            await asyncio.gather(*(self._one(run, get, room) for get in run.gets))
        finally:
            del self._runs[run]

    async def _one(self, run: _Run, get: GetPart, room: asyncio.Semaphore) -> None:
        async with room:
            try:
                store = Path()
                if isinstance(get.how, GetStored):
                    store = await self._store(get.how.store)
                work = _Getting(self._holder, self._reach(run.folder), run.key, get, run, store)
                await threads.run(work.get, "transfer-fetch")
            except _BlamedError as error:
                faults = [(one.endpoint, one.why) for one in error.faults]
            except PullError as error:
                faults = [(error.endpoint, error.why)]
            except EndedError:
                faults = [("", "another fetch replaced it")]
            except AgentError as error:
                faults = [("", error.message)]
            except (DamagedPartError, OSError, ValueError) as error:
                faults = [("", str(error))]
            else:
                return
        run.faults += [FetchFault(get.rank, get.part, at, why[:500]) for at, why in faults]


class _BlamedError(Exception):
    """Several endpoints did not have what they should."""

    def __init__(self, faults: Sequence[PullError]) -> None:
        super().__init__()
        self.faults = tuple(faults)


@dataclass(slots=True, frozen=True)
class _Getting:
    """Gets one part. In a thread of its own."""

    holder: Holder
    reach: PeerRoutes
    key: Key
    one: GetPart
    run: _Run
    store: Path

    def get(self) -> None:
        """Fetch it. PullError, _BlamedError, EndedError, DamagedPartError, AgentError, OSError."""
        self.run.stop.check()
        if self.holder.came(self.reach.folder, self.key, self.one):
            self.run.add(self.one.bytes)
            return
        match self.one.how:
            case GetLocal(endpoint):
                self._local(endpoint)
            case GetFrom(source):
                if source.server == self.reach.server:
                    self._local(source.endpoint)
                else:
                    self._from(source)
            case GetRebuilt():
                self._rebuilt(self.one.how)
            case GetStored():
                self._stored()

    def _local(self, endpoint: str) -> None:
        get, held = self.one, self.reach.held
        place = PartPlace(self.reach.folder, endpoint, HoldingKind.OWN, get.part, self.key)
        part = held.any_of(place, HoldingKind.OWN, HoldingKind.COPY)
        if part is None or part.manifest.digest != get.digest:
            has = "does not hold" if part is None else "holds other bytes for"
            why = f"{endpoint} {has} rank {get.part}'s part of step {self.key.step}"
            raise PullError(why, endpoint)
        try:
            self.holder.restore_from(part, get)
        except AgentError as error:
            local = Local(held, part, self.run.stop)
            try:
                why = local.check()
            finally:
                local.close()
            if why:
                raise PullError(why, endpoint) from error
            raise
        self.run.add(get.bytes)

    def _from(self, source: Source) -> None:
        part_source = self.reach.open(self.key, source, self.run.stop, on_bytes=self.run.add)
        try:
            found = part_source.head().manifest
            check_manifest(found, self.key, source)
            self._check_found(found, source.endpoint)
            self._receive(found, lambda to: part_sources.copy(part_source, to.root, self.run.stop))
        finally:
            part_source.close()

    def _stored(self) -> None:
        get = self.one
        arriving: list[Receiving] = []

        def receive(size: int) -> int:
            arriving.append(self.holder.receive_restore(self.reach.folder, self.key, get))
            return arriving[0].root

        try:
            wanted = stores.StoredPartRef(
                self.store, self.reach.folder, self.key, get.part, get.digest
            )
            found = stores.read(wanted, receive, self.run.stop, self.run.add)
            arriving[0].keep(found)
        finally:
            for one in arriving:
                one.give_up()

    def _rebuilt(self, how: GetRebuilt) -> None:
        opened: list[PartSource] = []
        try:
            members = self._members(how, opened)
            lost = next(i for i, one in enumerate(how.covers) if one.rank == self.one.part)
            found = self._lost_manifest([parity for _, parity in members if parity is not None])
            lengths = [one.bytes for one in how.covers]

            def rebuild(to: Receiving) -> None:
                files = Files(to.root, found)
                try:
                    sink = _Progress(files, self.run)
                    given = [part for part, _ in members]
                    schemes.rebuild(lost, given, [parity for _, parity in members], lengths, sink)
                    damages = files.finish()
                finally:
                    files.close()
                if damages:
                    self._blame(opened, parts.summary(damages))

            self._receive(found, rebuild)
        finally:
            for one in opened:
                one.close()

    def _members(
        self, how: GetRebuilt, opened: list[PartSource]
    ) -> list[tuple[PartSource | None, PartSource | None]]:
        """Return part and parity of each member, in the ring's order; none of the lost one."""
        ranks = [one.rank for one in how.covers]
        if len(set(ranks)) != len(ranks) or len(ranks) < 2 or self.one.part not in ranks:
            raise ValueError(
                "invalid parity set: it has duplicates, less than two ranks, or lacks the lost rank"
            )
        sources = {one.rank: one for one in how.parts}
        keepers = {one.rank: one for one in how.parities}
        found: list[tuple[PartSource | None, PartSource | None]] = []
        for member in how.covers:
            if member.rank == self.one.part:
                found.append((None, None))
                continue
            if member.rank not in sources or member.rank not in keepers:
                raise ValueError(f"no source is given for the part or parity of rank {member.rank}")
            source = sources[member.rank]
            part = self._opened(source, opened, parity=False)
            self._check_member(part, member)
            parity = self._opened(keepers[member.rank], opened, parity=True)
            self._check_covers(parity, how.covers)
            found.append((part, parity))
        return found

    def _opened(self, source: Source, opened: list[PartSource], *, parity: bool) -> PartSource:
        opened.append(
            self.reach.open(self.key, source, self.run.stop, parity=parity, ahead=pulling.AHEAD)
        )
        return opened[-1]

    def _check_member(self, part: PartSource, member: Member) -> None:
        found = part.head().manifest
        if (found.rank, found.digest, found.bytes) != member:
            why = f"{part.endpoint} does not have what the parities of its set cover"
            raise PullError(why, part.endpoint)

    def _check_covers(self, parity: PartSource, covers: tuple[Member, ...]) -> None:
        head = parity.head()
        chunk = schemes.chunk_bytes(max(one.bytes for one in covers), len(covers))
        if head.covers != covers or head.manifest.bytes != chunk:
            raise PullError(f"the parity of {parity.endpoint} covers another set", parity.endpoint)

    def _lost_manifest(self, parities: Sequence[PartSource]) -> Manifest:
        for parity in parities:
            for one in parity.head().manifests:
                if one.rank == self.one.part and one.digest == self.one.digest:
                    self._check_found(one, parity.endpoint)
                    return one
        raise PullError("no parity of the set has the lost part's manifest", parities[0].endpoint)

    def _check_found(self, found: Manifest, endpoint: str) -> None:
        got = (found.step, found.epoch, found.rank, found.digest, found.bytes)
        get = self.one
        if got != (*self.key, get.part, get.digest, get.bytes):
            raise PullError(f"{endpoint} gave the manifest of another part", endpoint)

    def _blame(self, opened: Sequence[PartSource], what: str) -> None:
        """Find who gave damaged bytes: every source reads its part again."""
        blamed = [
            PullError(f"what {one.endpoint} gave is damaged: {why}", one.endpoint)
            for one in opened
            if (why := one.check())
        ]
        raise _BlamedError(blamed or [PullError(f"the rebuilt part {what}")])

    def _receive(self, found: Manifest, write: Callable[[Receiving], None]) -> None:
        receiving = self.holder.receive_restore(self.reach.folder, self.key, self.one)
        try:
            write(receiving)
            self.run.stop.check()
            receiving.keep(found)
        finally:
            receiving.give_up()


@dataclass(slots=True, frozen=True)
class _Progress:
    """Counts what a rebuilt part has, and ends when the fetch does."""

    files: Files
    run: _Run

    def write(self, block: bytes, /) -> None:
        self.run.stop.check()
        self.files.write(block)
        self.run.add(len(block))
