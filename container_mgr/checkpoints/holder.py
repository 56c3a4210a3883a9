"""Holds the checkpoints of jobs on this server: folders, their watch, and what is in them."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog

from agentlink.checkpoints import Folder, GetPart, Holding, HoldingKind, Verified
from agentlink.ranks import RankCheckpoint, RankSpec
from agentlink.values import Where
from base import clock
from checkpoints.ledger import Key
from checkpoints.manifest import Manifest
from checkpoints.rules import parse_rule
from container_mgr import atomic_file
from container_mgr.checkpoints import layout, parts, recovery, seed
from container_mgr.checkpoints.arrivals import Arriving, fault
from container_mgr.checkpoints.contract import News, Receiving
from container_mgr.checkpoints.disk import space
from container_mgr.checkpoints.disk.files import AgentEndingError, ChangedError
from container_mgr.checkpoints.disk.removal import FolderRemoval
from container_mgr.checkpoints.disk.space import ServerSpace, Space
from container_mgr.checkpoints.feed import HoldingsFeed
from container_mgr.checkpoints.folder_use import FolderUse
from container_mgr.checkpoints.parts import About, StoredPart
from container_mgr.checkpoints.rank_folder import RankFolder, Stored, mismatch
from container_mgr.checkpoints.resuming import Resuming
from container_mgr.checkpoints.values import HeldPart, PartPlace
from container_mgr.checkpoints.watching.live import FolderRun, LiveFolder
from container_mgr.checkpoints.watching.watch import AGAIN_S, FolderWatch
from container_mgr.checkpoints.workers import CheckpointThreads, Use
from container_mgr.users import RankUser
from container_mgr.values import AgentError, Container
from container_mgr.volumes import tree

VERIFIED_BATCH = 16

_log = structlog.get_logger("container_mgr.checkpoints")


@dataclass(slots=True, frozen=True)
class Begun:
    """What a container is shown of its rank's folder."""

    live: Path
    """The program's folder. It sees the one above, so that it can remove and make its own."""
    restore: Path | None
    """Where the step that it resumes from is; None for a start at 0."""
    step: int | None
    memory_bytes: int
    """What the folder adds to the container's limit of memory, which its files count against."""


class DiskHolder:
    """Implements ``Holder``. The coroutines belong to one event loop."""

    def __init__(
        self,
        root: Path,
        *,
        endpoints: Collection[str] | None = None,
        remapped: RankUser | None = None,
        remaps: bool = False,
        space: Space | None = None,
        clock: Callable[[], float] = clock.time,
    ) -> None:
        """``endpoints`` are this server's, None for all.

        ``remapped`` is what the user 0 of containers is outside them, with ``userns-remap``. If
        the engine ``remaps`` to unknown users, ranks with checkpoints cannot start.
        """
        self._root = root.parent.resolve() / root.name
        self._endpoints = endpoints
        self._remapped = remapped
        self._remaps = remaps
        self._space = space or ServerSpace()
        self._clock = clock
        self._feed = HoldingsFeed()
        self._lock = threading.Lock()
        """Guards what follows; never held during work on files."""
        self._folders: dict[str, Folder] = {}
        self._rank_folders: dict[tuple[str, str], RankFolder] = {}
        self._lives: dict[tuple[str, str], LiveFolder] = {}
        self._held: dict[PartPlace, HeldPart] = {}
        self._resuming = Resuming(self._root, self._rank_folders_of)
        self._uses = FolderUse()
        self._making = threading.Lock()
        self._stopping = threading.Event()
        self._removal = FolderRemoval(self._root, self._space, self._stopping.is_set)
        self._workers = CheckpointThreads(self._stopping)
        self._watch: FolderWatch | None = None

    async def recover(self) -> None:
        """Rebuild everything from the folders. OSError when the root cannot be used."""
        self._workers.begin()
        try:
            await self._workers.submit(Use.READ, self._recover)
        except AgentError as error:
            raise OSError(str(error)) from error
        if self._watch is None:
            self._watch = FolderWatch(self._workers.submitter(Use.READ))

    async def close(self) -> None:
        """End the threads; folders stay."""
        self._stopping.set()
        self._feed.close()
        watch, self._watch = self._watch, None
        if watch is not None:
            await watch.stop()
        await self._workers.close()
        if watch is not None:
            watch.close()

    # What the ranks need.

    @contextmanager
    def reserved(self, spec: RankSpec) -> Iterator[None]:
        """Keep a rank's folder from removal until its container is watched.

        Raises AgentError(conflict) while it is being removed.
        """
        if spec.checkpoint is None:
            yield
            return
        name = spec.key.container
        self._uses.claim(name, spec.checkpoint.folder, spec.endpoint)
        if spec.checkpoint.resumed is not None:
            self._resuming.comes(spec.checkpoint.folder, spec.endpoint)
        try:
            yield
        except BaseException:
            self.ended(name)
            raise

    async def begin(self, spec: RankSpec, user: RankUser, *, remapped: bool = True) -> Begun | None:
        """Empty and seed the folder of a rank that is to start; None without checkpoints.

        Raises AgentError; ``failed`` when the part to resume from is not here whole.
        """
        if spec.checkpoint is None:
            return None
        base = self._remapped if remapped else None
        if remapped and self._remaps and base is None:
            raise AgentError(
                "unavailable", spec.key.container,
                "the engine remaps users, but its directory does not show to which",
                "run the engine with its usual directories",
            )  # fmt: skip
        outside = RankUser(user.uid + base.uid, user.gid + base.gid) if base else user
        use = Use.START if spec.checkpoint.resumed is None else Use.RESUME
        work = partial(self._begin, spec, outside)
        return await self._workers.run(use, work, spec.key.container)

    def watch(self, container: Container) -> None:
        """Watch the folder of a container that runs. Idempotent."""
        if not container.folder:
            return
        place = (container.folder, container.endpoint)
        self._uses.record(container.key.container, *place)
        with self._lock:
            live = self._lives.get(place)
        if live is None or live.run.container != container.key.container:
            _log.error("a rank's folder is not known", container=container.key.container)
        elif self._watch is not None and not self._watch.add(live):
            self._workers.later(Use.REMOVE, partial(self._resuming.begun, live))

    def ended(self, name: str) -> None:
        """Note that a container is gone; what it wrote last is still held."""
        place = self._uses.release(name)
        with self._lock:
            live = self._lives.get(place) if place else None
        if live is not None and live.run.container == name:
            self._workers.later(Use.READ, partial(self._finish, live))

    def excesses(self) -> Mapping[str, str]:
        """Return, once, the containers that must end for what they wrote, and why."""
        return self._uses.excesses()

    # Holder.

    def news(self) -> AsyncIterator[News]:
        """See ``Holder``."""
        return self._feed.news()

    def folder(self, name: str) -> Folder | None:
        """See ``Holder``."""
        return self._folders.get(name)

    async def make(self, folder: Folder) -> None:
        """See ``Holder``."""
        await self._workers.run(Use.START, partial(self._make, folder), folder.name)

    async def expect(self, folder: str, endpoints: Collection[str]) -> None:
        """See ``Holder``."""
        await self._workers.run(
            Use.START, partial(self._resuming.expect, folder, endpoints), folder
        )

    def find(self, place: PartPlace) -> HeldPart | None:
        """See ``Holder``."""
        return self._held.get(place)

    def owner(self, folder: str, endpoint: str) -> RankUser:
        """See ``Holder``."""
        rank_folder = self._rank_folder(folder, endpoint)
        try:
            with rank_folder.opened(layout.LIVE) as at:
                found = os.fstat(at)
        except OSError as error:
            raise fault(rank_folder, error) from error
        return RankUser(found.st_uid, found.st_gid)

    def receive(self, place: PartPlace, size_bytes: int) -> Receiving:
        """See ``Holder``."""
        parents = layout.parents(place)
        rank_folder = self._rank_folder(place.folder, place.endpoint)

        def kept(found: StoredPart) -> None:
            self.held(rank_folder.part(place, found), found.about)

        try:
            rank_folder.require(
                size_bytes, space.FOR_COPIES if place.kind is HoldingKind.COPY else ""
            )
            return Arriving(
                rank_folder, parents, layout.named(place.key), About(seen_at=self._clock()),
                why_not=partial(mismatch, place), kept=kept,
            )  # fmt: skip
        except OSError as error:
            raise fault(rank_folder, error) from error

    def came(self, folder: str, key: Key, get: GetPart) -> bool:
        """See ``Holder``."""
        rank_folder = self._rank_folder(folder, get.endpoint)
        try:
            return seed.came(rank_folder, key, get)
        except (OSError, AgentEndingError) as error:
            raise fault(rank_folder, error) from error

    def receive_restore(self, folder: str, key: Key, get: GetPart) -> Receiving:
        """See ``Holder``."""
        return self._receive_restore(folder, key, get, linked=False)

    def _receive_restore(self, folder: str, key: Key, get: GetPart, *, linked: bool) -> Arriving:
        rank_folder = self._rank_folder(folder, get.endpoint)
        try:
            rank_folder.require(get.bytes, space.FOR_ALL if get.part != get.rank else "")
            return Arriving(
                rank_folder, (layout.STAGED, layout.named(key)), str(get.part),
                About(rank=get.rank, seen_at=self._clock()),
                why_not=partial(_not_asked, folder, key, get), kept=lambda found: None,
                stamped=not linked,
            )  # fmt: skip
        except OSError as error:
            raise fault(rank_folder, error) from error

    def restore_from(self, part: HeldPart, get: GetPart) -> None:
        """See ``Holder``."""
        place = part.place
        source = self._rank_folder(place.folder, place.endpoint)
        get = _free(get, source)
        # A mapping of the old run changes a linked file, and in memory none of its stamps.
        arriving = self._receive_restore(place.folder, place.key, get, linked=True)
        try:
            names = (*layout.parents(place), layout.named(place.key), parts.FILES)
            with source.opened(*names) as at:
                seed.bring(at, part.manifest, arriving.root, source)
            arriving.keep(part.manifest)
        except (OSError, ChangedError, AgentEndingError) as error:
            raise fault(source, error) from error
        except AgentError:
            if damages := self._compare(source, part):
                self.damaged(place, "; ".join(damages))
            raise
        finally:
            arriving.give_up()

    def report(self, holding: Holding) -> None:
        """See ``Holder``. What is in a store is known after a restart too."""
        self._feed.report(holding)
        if holding.kind is HoldingKind.STORED:
            self._workers.later(Use.START, partial(self._note, holding))

    def damaged(self, place: PartPlace, why: str) -> None:
        """See ``Holder``."""
        if (rank_folder := self._withdraw(place, why)) is not None:
            self._workers.later(Use.REMOVE, partial(self._remove, rank_folder, place))

    async def close_step(self, folder: str, key: Key) -> None:
        """See ``Holder``."""
        await self._workers.run(Use.READ, partial(self._close_step, folder, key), folder)

    async def drop(self, folder: str, keys: Collection[Key]) -> None:
        """See ``Holder``."""
        await self._workers.run(Use.READ, partial(self._drop, folder, sorted(keys)), folder)

    async def verify(self, folder: str, key: Key | None) -> AsyncIterator[tuple[Verified, ...]]:
        """See ``Holder``. A damaged part is held no more."""
        chosen = [
            (place, part)
            for place, part in sorted(self._held.items(), key=lambda item: item[0].key)
            if place.folder == folder and key in {None, place.key}
        ]
        batch: list[Verified] = []
        for place, part in chosen:
            work = partial(self._verify, place, part)
            batch.append(await self._workers.run(Use.READ, work, folder))
            if len(batch) == VERIFIED_BATCH:
                yield tuple(batch)
                batch = []
        if batch:
            yield tuple(batch)

    async def forget(self, folder: str) -> bool:
        """See ``Holder``."""
        layout.check_folder(folder)
        with self._uses.removing(folder):
            return await self._workers.run(Use.REMOVE, partial(self._forget, folder), folder)

    # What ``LiveFolder`` needs; any thread.

    def held(self, part: HeldPart, about: About) -> None:
        """Add a new part, and report it."""
        place = part.place
        with self._lock:
            self._held[place] = part
            live = self._lives.get((place.folder, place.endpoint))
        self._feed.report(
            Holding(
                folder=place.folder,
                key=place.key,
                rank=place.rank,
                endpoint=place.endpoint,
                kind=place.kind,
                digest=part.manifest.digest,
                bytes=part.manifest.bytes,
                covers=part.covers,
                written_s=about.written_s,
                seen_at=about.seen_at,
            )
        )
        if place.kind is HoldingKind.OWN and live is not None and live.run.epoch == place.key.epoch:
            self._resuming.loaded(live)

    def exceeded(self, container: str, why: str) -> None:
        """Note a rank that must end."""
        self._uses.exceed(container, why)

    def holds(self, place: PartPlace) -> bool:
        """Return whether a part is held."""
        return place in self._held

    def names_bytes(self, folder: str, endpoint: str) -> int:
        """Return the bytes of the paths of all files that are held of one folder's own steps."""
        where = (folder, endpoint, HoldingKind.OWN)
        with self._lock:
            held = [p for at, p in self._held.items() if (at.folder, at.endpoint, at.kind) == where]
        return sum(part.manifest.files.names_bytes for part in held)

    # Work in threads.

    def _recover(self) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root.chmod(0o700)
        with tree.opened(self._root) as at:
            disk = space.total(at)
        for name, folder, endpoints in recovery.folders(self._root):
            if folder is None:
                self._removal.bury(name)
                continue
            self._folders[name] = folder
            if folder.where is Where.DISK and folder.size_bytes > disk:
                _log.warning("folder above the disk goes on", folder=name, size=folder.size_bytes)
            self._recover_folder(folder, endpoints)
        self._removal.dig()

    def _recover_folder(self, folder: Folder, endpoints: Sequence[str]) -> None:
        found = [one for name in endpoints if (one := self._recover_rank_folder(folder, name))]
        newest = max((live.run.epoch for live, _ in found), default=0)
        reading = {
            live.rank_folder.endpoint: newest
            for live, restoring in found
            if restoring and live.run.epoch == newest
        }
        self._resuming.recover(folder.name, reading)
        for live, restoring in found:
            if not restoring:
                self._resuming.unload(live)
            self._workers.later(Use.READ, partial(self._last_scan, live))

    def _recover_rank_folder(self, folder: Folder, endpoint: str) -> tuple[LiveFolder, bool] | None:
        """Return the last run there, and whether its rank may still read what it resumed from."""
        try:
            rank_folder = self._rank_folder(folder.name, endpoint)
            found = recovery.read(rank_folder)
        except (OSError, AgentError) as error:
            _log.error("folder not read", folder=folder.name, at=endpoint, reason=str(error))
            return None
        for place, why in found.damaged:
            self._miss(place, why)
        for part, about in found.parts:
            self.held(part, about)
        for holding in found.stored:
            self._feed.report(holding)
        if found.run is None:
            return None
        live = LiveFolder(rank_folder, found.run, self, clock=self._clock)
        mine = {key: stamp for key, stamp in found.stamps.items() if key.epoch == live.run.epoch}
        for key, stamp in mine.items():
            live.remember(key.step, stamp)
        with self._lock:
            self._lives[folder.name, endpoint] = live
        return live, found.restoring and not mine

    def _rank_folder(self, name: str, endpoint: str) -> RankFolder:
        folder = self._folders.get(name)
        if folder is None:
            raise AgentError("not_found", name, "this server has no such folder")
        if not recovery.is_endpoint(endpoint) or (
            self._endpoints is not None and endpoint not in self._endpoints
        ):
            raise AgentError("not_found", name, f"endpoint {endpoint[:80]!r} is not on this server")
        with self._lock:
            rank_folder = self._rank_folders.get((name, endpoint))
            if rank_folder is None:
                rank_folder = RankFolder(
                    self._root, folder, endpoint, self._space, self._stopping.is_set
                )
                self._rank_folders[name, endpoint] = rank_folder
        try:
            rank_folder.prepare()
        except OSError as error:
            raise fault(rank_folder, error) from error
        return rank_folder

    def _rank_folders_of(self, folder: str) -> list[RankFolder]:
        with self._lock:
            return [s for (name, _), s in self._rank_folders.items() if name == folder]

    def _make(self, folder: Folder) -> None:
        layout.check_terms(folder)
        with self._making:
            known = self._folders.get(folder.name)
            if known == folder:
                return
            if known is not None:
                what = "key" if known.key != folder.key else "place or size"
                raise AgentError(
                    "conflict", folder.name, f"the folder was made with another {what}",
                    "names of folders are never used again",
                )  # fmt: skip
            if len(self._folders) >= layout.MAX_FOLDERS:
                raise AgentError(
                    "failed", folder.name,
                    f"this server has {layout.MAX_FOLDERS} folders of checkpoints",
                    "remove folders of ended jobs",
                )  # fmt: skip
            path = self._root / folder.name
            path.mkdir(mode=0o700, exist_ok=True)
            atomic_file.write(path / layout.RECORD, layout.dump(folder), mode=0o600)
            with tree.opened(self._root) as at:
                os.fsync(at)
            self._folders[folder.name] = folder

    def _begin(self, spec: RankSpec, user: RankUser) -> Begun:
        asked = spec.checkpoint
        if asked is None:
            raise AgentError("invalid", spec.key.container, "it has no checkpoints")
        parse_rule(asked.rule)
        self._require_disk(asked)
        self._make(Folder(asked.folder, asked.key, asked.where, asked.size_bytes))
        rank_folder = self._rank_folder(asked.folder, spec.endpoint)
        place = (asked.folder, spec.endpoint)
        with self._lock:
            before = self._lives.get(place)
        siblings = [s for s in self._rank_folders_of(asked.folder) if s is not rank_folder]
        if before is not None:
            self._leave(before)
        run = FolderRun(spec.key.container, spec.key.rank, asked.ranks, spec.key.epoch, asked.rule)
        self._resuming.begins(*place, run.epoch, resumes=asked.resumed is not None)
        begun = seed.begin(rank_folder, siblings, run, asked.resumed, user)
        live = LiveFolder(rank_folder, begun, self, clock=self._clock)
        with self._lock:
            self._lives[place] = live
        self._resuming.begun(live)
        return Begun(
            live=rank_folder.path.joinpath(*run.place),
            restore=rank_folder.path / layout.RESTORE if asked.resumed is not None else None,
            step=asked.resumed.step if asked.resumed is not None else None,
            memory_bytes=asked.size_bytes if asked.where is Where.MEMORY else 0,
        )

    def _leave(self, live: LiveFolder) -> None:
        live.end()
        if self._watch is not None:
            self._watch.end(live)

    def _require_disk(self, asked: RankCheckpoint) -> None:
        """Refuse a folder that the disk cannot hold. A job that runs already goes on."""
        if asked.where is Where.MEMORY or asked.resumed or asked.folder in self._folders:
            return
        with tree.opened(self._root) as at:
            disk = space.total(at)
        if asked.size_bytes > disk:
            raise AgentError(
                "invalid", asked.folder,
                f"checkpoints of {asked.size_bytes} bytes: the server's disk has {disk}",
                "ask for less in checkpoint.local.size of the job",
            )  # fmt: skip

    def _finish(self, live: LiveFolder) -> None:
        if self._watch is not None:
            self._watch.end(live)
        self._last_scan(live)

    def _last_scan(self, live: LiveFolder) -> None:
        """Hold what a program wrote right before its end."""
        try:
            while live.scan() and not self._stopping.is_set():
                clock.sleep(AGAIN_S)
        except AgentEndingError:
            return
        except OSError as error:
            _log.warning("not scanned", folder=str(live.rank_folder.path), reason=str(error))

    def _close_step(self, folder: str, key: Key) -> None:
        with self._lock:
            lives = [live for (name, _), live in self._lives.items() if name == folder]
        for live in lives:
            if live.run.epoch == key.epoch and not live.close(key.step):
                place = PartPlace(
                    folder, live.rank_folder.endpoint, HoldingKind.OWN, live.run.rank, key
                )
                self._miss(place, "the step was gone before all ranks had written it")

    def _drop(self, folder: str, keys: Sequence[Key]) -> None:
        for key in keys:
            with self._lock:
                places = [p for p in self._held if p.folder == folder and p.key == key]
                lives = [live for (name, _), live in self._lives.items() if name == folder]
            for live in lives:
                if live.run.epoch == key.epoch:
                    live.drop(key.step)
            for place in places:
                if (rank_folder := self._withdraw(place, "it was dropped")) is not None:
                    self._remove(rank_folder, place)
            for rank_folder in self._rank_folders_of(folder):
                for holding in Stored(rank_folder).drop(key):
                    self._miss_stored(holding)

    def _withdraw(self, place: PartPlace, why: str) -> RankFolder | None:
        """Report that a part is no longer held; return the folder to remove it from."""
        with self._lock:
            there = self._held.pop(place, None) is not None
            rank_folder = self._rank_folders.get((place.folder, place.endpoint))
        if there:
            self._miss(place, why)
        return rank_folder if there else None

    def _remove(self, rank_folder: RankFolder, place: PartPlace) -> None:
        try:
            # It may have come again meanwhile.
            if place not in self._held:
                rank_folder.remove(layout.parents(place), layout.named(place.key))
        except OSError as error:
            _log.warning("not removed", folder=place.folder, step=place.key, reason=str(error))

    def _note(self, holding: Holding) -> None:
        try:
            Stored(self._rank_folder(holding.folder, holding.endpoint)).add(holding)
        except (AgentError, OSError) as error:
            _log.warning("not noted", folder=holding.folder, reason=str(error))

    def _miss(self, place: PartPlace, why: str) -> None:
        holding = Holding(
            folder=place.folder, key=place.key, rank=place.rank, endpoint=place.endpoint,
            kind=HoldingKind.MISSING, why=why[:500], seen_at=self._clock(),
        )  # fmt: skip
        self._feed.report(holding, place.kind)

    def _miss_stored(self, holding: Holding) -> None:
        place = PartPlace(
            holding.folder, holding.endpoint, HoldingKind.STORED, holding.rank, holding.key
        )
        self._miss(place, "it was dropped")

    def _compare(self, rank_folder: RankFolder, part: HeldPart) -> tuple[str, ...]:
        place = part.place
        names = (*layout.parents(place), layout.named(place.key), parts.FILES)
        try:
            with rank_folder.opened(*names) as at:
                return parts.damages(at, part.manifest, self._stopping.is_set)
        except OSError as error:
            return (f"it cannot be read: {error.strerror}",)

    def _verify(self, place: PartPlace, part: HeldPart) -> Verified:
        damages = self._compare(self._rank_folder(place.folder, place.endpoint), part)
        if damages and self._held.get(place) is part:
            self.damaged(place, "; ".join(damages))
        return Verified(place.key, place.rank, place.endpoint, place.kind, damages)

    def _forget(self, folder: str) -> bool:
        with self._making:
            known = self._folders.pop(folder, None)
        with self._lock:
            lives = [self._lives.pop(p) for p in list(self._lives) if p[0] == folder]
            rank_folders = [
                self._rank_folders.pop(p) for p in list(self._rank_folders) if p[0] == folder
            ]
            for place in [p for p in self._held if p.folder == folder]:
                del self._held[place]
        for live in lives:
            self._leave(live)
        self._feed.forget(folder)
        self._resuming.forget(folder)
        for rank_folder in rank_folders:
            rank_folder.release()
        buried = self._removal.bury(folder)
        self._removal.dig()
        return known is not None or buried


def _not_asked(folder: str, key: Key, get: GetPart, manifest: Manifest) -> str:
    place = PartPlace(folder, get.endpoint, HoldingKind.COPY, get.part, key)
    why = mismatch(place, manifest)
    if not why and manifest.digest != get.digest:
        why = f"its digest is {manifest.digest}, not {get.digest}"
    return why


def _free(get: GetPart, source: RankFolder) -> GetPart:
    """Return what needs no more room where the part lies in the same folder: links are enough."""
    return replace(get, bytes=0) if source.endpoint == get.endpoint else get
