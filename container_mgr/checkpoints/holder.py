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
from container_mgr.checkpoints.disk.files import ChangedError, StoppedError
from container_mgr.checkpoints.disk.removal import Removal
from container_mgr.checkpoints.disk.space import ServerSpace, Space
from container_mgr.checkpoints.feed import Feed
from container_mgr.checkpoints.parts import About, Found
from container_mgr.checkpoints.resuming import Resuming
from container_mgr.checkpoints.shelf import Shelf, Stored, mismatch
from container_mgr.checkpoints.tenants import Tenants
from container_mgr.checkpoints.values import Part, Place
from container_mgr.checkpoints.watching.live import Live, Run
from container_mgr.checkpoints.watching.watch import AGAIN_S, Watch
from container_mgr.checkpoints.workers import Use, Workers
from container_mgr.users import User
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


class Checkpoints:
    """Implements ``Holder``. The coroutines belong to one event loop."""

    def __init__(
        self,
        root: Path,
        *,
        endpoints: Collection[str] | None = None,
        remapped: User | None = None,
        remaps: bool = False,
        space: Space | None = None,
        clock: Callable[[], float] = clock.time,
    ) -> None:
        """``endpoints`` are those of this server, None for all.

        ``remapped`` is what the user 0 of containers is outside them, with ``userns-remap``. An
        engine that ``remaps`` and does not say to whom runs no rank with checkpoints.
        """
        self._root = root.parent.resolve() / root.name
        self._endpoints = endpoints
        self._remapped = remapped
        self._remaps = remaps
        self._space = space or ServerSpace()
        self._clock = clock
        self._feed = Feed()
        self._lock = threading.Lock()
        """Guards what follows; never held during work on files."""
        self._folders: dict[str, Folder] = {}
        self._shelves: dict[tuple[str, str], Shelf] = {}
        self._lives: dict[tuple[str, str], Live] = {}
        self._held: dict[Place, Part] = {}
        self._resuming = Resuming(self._root, self._shelves_of)
        self._tenants = Tenants()
        self._making = threading.Lock()
        self._stopping = threading.Event()
        self._removal = Removal(self._root, self._space, self._stopping.is_set)
        self._workers = Workers(self._stopping)
        self._watch: Watch | None = None

    async def recover(self) -> None:
        """Rebuild everything from the folders. OSError when the root cannot be used."""
        self._workers.begin()
        try:
            await self._workers.submit(Use.READ, self._recover)
        except AgentError as error:
            raise OSError(str(error)) from error
        if self._watch is None:
            self._watch = Watch(self._workers.submitter(Use.READ))

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
        self._tenants.come(name, spec.checkpoint.folder, spec.endpoint)
        if spec.checkpoint.resumed is not None:
            self._resuming.comes(spec.checkpoint.folder, spec.endpoint)
        try:
            yield
        except BaseException:
            self.ended(name)
            raise

    async def begin(self, spec: RankSpec, user: User, *, remapped: bool = True) -> Begun | None:
        """Empty and seed the folder of a rank that is to start; None without checkpoints.

        Raises AgentError; ``failed`` when the part to resume from is not here whole.
        """
        if spec.checkpoint is None:
            return None
        base = self._remapped if remapped else None
        if remapped and self._remaps and base is None:
            raise AgentError(
                "unavailable", spec.key.container,
                "the engine remaps users, but its directory does not say to which",
                "run the engine with its usual directories",
            )  # fmt: skip
        outside = User(user.uid + base.uid, user.gid + base.gid) if base else user
        use = Use.START if spec.checkpoint.resumed is None else Use.RESUME
        work = partial(self._begin, spec, outside)
        return await self._workers.run(use, work, spec.key.container)

    def watch(self, container: Container) -> None:
        """Watch the folder of a container that runs. Idempotent."""
        if not container.folder:
            return
        place = (container.folder, container.endpoint)
        self._tenants.stay(container.key.container, *place)
        with self._lock:
            live = self._lives.get(place)
        if live is None or live.run.container != container.key.container:
            _log.error("a rank's folder is not known", container=container.key.container)
        elif self._watch is not None and not self._watch.add(live):
            self._workers.later(Use.REMOVE, partial(self._resuming.begun, live))

    def ended(self, name: str) -> None:
        """Learn that a container is gone; what it wrote last is still held."""
        place = self._tenants.leave(name)
        with self._lock:
            live = self._lives.get(place) if place else None
        if live is not None and live.run.container == name:
            self._workers.later(Use.READ, partial(self._finish, live))

    def excesses(self) -> Mapping[str, str]:
        """Return, once, the containers that must end for what they wrote, and why."""
        return self._tenants.excesses()

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

    def find(self, place: Place) -> Part | None:
        """See ``Holder``."""
        return self._held.get(place)

    def owner(self, folder: str, endpoint: str) -> User:
        """See ``Holder``."""
        shelf = self._shelf(folder, endpoint)
        try:
            with shelf.opened(layout.LIVE) as at:
                found = os.fstat(at)
        except OSError as error:
            raise fault(shelf, error) from error
        return User(found.st_uid, found.st_gid)

    def receive(self, place: Place, size_bytes: int) -> Receiving:
        """See ``Holder``."""
        parents = layout.parents(place)
        shelf = self._shelf(place.folder, place.endpoint)

        def kept(found: Found) -> None:
            self.held(shelf.part(place, found), found.about)

        try:
            shelf.require(size_bytes, space.FOR_COPIES if place.kind is HoldingKind.COPY else "")
            return Arriving(
                shelf, parents, layout.named(place.key), About(seen_at=self._clock()),
                why_not=partial(mismatch, place), kept=kept,
            )  # fmt: skip
        except OSError as error:
            raise fault(shelf, error) from error

    def came(self, folder: str, key: Key, get: GetPart) -> bool:
        """See ``Holder``."""
        shelf = self._shelf(folder, get.endpoint)
        try:
            return seed.came(shelf, key, get)
        except (OSError, StoppedError) as error:
            raise fault(shelf, error) from error

    def receive_restore(self, folder: str, key: Key, get: GetPart) -> Receiving:
        """See ``Holder``."""
        return self._receive_restore(folder, key, get, linked=False)

    def _receive_restore(self, folder: str, key: Key, get: GetPart, *, linked: bool) -> Arriving:
        shelf = self._shelf(folder, get.endpoint)
        try:
            shelf.require(get.bytes, space.FOR_ALL if get.part != get.rank else "")
            return Arriving(
                shelf, (layout.STAGED, layout.named(key)), str(get.part),
                About(rank=get.rank, seen_at=self._clock()),
                why_not=partial(_not_asked, folder, key, get), kept=lambda found: None,
                stamped=not linked,
            )  # fmt: skip
        except OSError as error:
            raise fault(shelf, error) from error

    def restore_from(self, part: Part, get: GetPart) -> None:
        """See ``Holder``."""
        place = part.place
        source = self._shelf(place.folder, place.endpoint)
        get = _free(get, source)
        # A mapping of the old run changes a linked file, and in memory none of its stamps.
        arriving = self._receive_restore(place.folder, place.key, get, linked=True)
        try:
            names = (*layout.parents(place), layout.named(place.key), parts.FILES)
            with source.opened(*names) as at:
                seed.bring(at, part.manifest, arriving.root, source)
            arriving.keep(part.manifest)
        except (OSError, ChangedError, StoppedError) as error:
            raise fault(source, error) from error
        except AgentError:
            if damages := self._compare(source, part):
                self.damaged(place, "; ".join(damages))
            raise
        finally:
            arriving.give_up()

    def tell(self, holding: Holding) -> None:
        """See ``Holder``. What is in a store is known after a restart too."""
        self._feed.tell(holding)
        if holding.kind is HoldingKind.STORED:
            self._workers.later(Use.START, partial(self._note, holding))

    def damaged(self, place: Place, why: str) -> None:
        """See ``Holder``."""
        if (shelf := self._take_out(place, why)) is not None:
            self._workers.later(Use.REMOVE, partial(self._remove, shelf, place))

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
        with self._tenants.removing(folder):
            return await self._workers.run(Use.REMOVE, partial(self._forget, folder), folder)

    # What ``Live`` needs; any thread.

    def held(self, part: Part, about: About) -> None:
        """Learn of a new part, and tell of it."""
        place = part.place
        with self._lock:
            self._held[place] = part
            live = self._lives.get((place.folder, place.endpoint))
        self._feed.tell(
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
        """Learn of a rank that must end."""
        self._tenants.exceed(container, why)

    def holds(self, place: Place) -> bool:
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
        found = [one for name in endpoints if (one := self._recover_shelf(folder, name))]
        newest = max((live.run.epoch for live, _ in found), default=0)
        reading = {
            live.shelf.endpoint: newest
            for live, restoring in found
            if restoring and live.run.epoch == newest
        }
        self._resuming.recover(folder.name, reading)
        for live, restoring in found:
            if not restoring:
                self._resuming.unload(live)
            self._workers.later(Use.READ, partial(self._last_scan, live))

    def _recover_shelf(self, folder: Folder, endpoint: str) -> tuple[Live, bool] | None:
        """Return the last run there, and whether its rank may still read what it resumed from."""
        try:
            shelf = self._shelf(folder.name, endpoint)
            found = recovery.read(shelf)
        except (OSError, AgentError) as error:
            _log.error("folder not read", folder=folder.name, at=endpoint, reason=str(error))
            return None
        for place, why in found.damaged:
            self._miss(place, why)
        for part, about in found.parts:
            self.held(part, about)
        for holding in found.stored:
            self._feed.tell(holding)
        if found.run is None:
            return None
        live = Live(shelf, found.run, self, clock=self._clock)
        mine = {key: stamp for key, stamp in found.stamps.items() if key.epoch == live.run.epoch}
        for key, stamp in mine.items():
            live.remember(key.step, stamp)
        with self._lock:
            self._lives[folder.name, endpoint] = live
        return live, found.restoring and not mine

    def _shelf(self, name: str, endpoint: str) -> Shelf:
        folder = self._folders.get(name)
        if folder is None:
            raise AgentError("not_found", name, "this server has no such folder")
        if not recovery.is_endpoint(endpoint) or (
            self._endpoints is not None and endpoint not in self._endpoints
        ):
            raise AgentError("not_found", name, f"endpoint {endpoint[:80]!r} is not on this server")
        with self._lock:
            shelf = self._shelves.get((name, endpoint))
            if shelf is None:
                shelf = Shelf(self._root, folder, endpoint, self._space, self._stopping.is_set)
                self._shelves[name, endpoint] = shelf
        try:
            shelf.prepare()
        except OSError as error:
            raise fault(shelf, error) from error
        return shelf

    def _shelves_of(self, folder: str) -> list[Shelf]:
        with self._lock:
            return [s for (name, _), s in self._shelves.items() if name == folder]

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
                    "remove those of ended jobs",
                )  # fmt: skip
            path = self._root / folder.name
            path.mkdir(mode=0o700, exist_ok=True)
            atomic_file.write(path / layout.RECORD, layout.dump(folder), mode=0o600)
            with tree.opened(self._root) as at:
                os.fsync(at)
            self._folders[folder.name] = folder

    def _begin(self, spec: RankSpec, user: User) -> Begun:
        asked = spec.checkpoint
        if asked is None:
            raise AgentError("invalid", spec.key.container, "it has no checkpoints")
        parse_rule(asked.rule)
        self._require_disk(asked)
        self._make(Folder(asked.folder, asked.key, asked.where, asked.size_bytes))
        shelf = self._shelf(asked.folder, spec.endpoint)
        place = (asked.folder, spec.endpoint)
        with self._lock:
            before = self._lives.get(place)
        siblings = [s for s in self._shelves_of(asked.folder) if s is not shelf]
        if before is not None:
            self._leave(before)
        run = Run(spec.key.container, spec.key.rank, asked.ranks, spec.key.epoch, asked.rule)
        self._resuming.begins(*place, run.epoch, resumes=asked.resumed is not None)
        begun = seed.begin(shelf, siblings, run, asked.resumed, user)
        live = Live(shelf, begun, self, clock=self._clock)
        with self._lock:
            self._lives[place] = live
        self._resuming.begun(live)
        return Begun(
            live=shelf.path.joinpath(*run.place),
            restore=shelf.path / layout.RESTORE if asked.resumed is not None else None,
            step=asked.resumed.step if asked.resumed is not None else None,
            memory_bytes=asked.size_bytes if asked.where is Where.MEMORY else 0,
        )

    def _leave(self, live: Live) -> None:
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

    def _finish(self, live: Live) -> None:
        if self._watch is not None:
            self._watch.end(live)
        self._last_scan(live)

    def _last_scan(self, live: Live) -> None:
        """Hold what a program wrote right before its end."""
        try:
            while live.scan() and not self._stopping.is_set():
                clock.sleep(AGAIN_S)
        except StoppedError:
            return
        except OSError as error:
            _log.warning("not scanned", folder=str(live.shelf.path), reason=str(error))

    def _close_step(self, folder: str, key: Key) -> None:
        with self._lock:
            lives = [live for (name, _), live in self._lives.items() if name == folder]
        for live in lives:
            if live.run.epoch == key.epoch and not live.close(key.step):
                place = Place(folder, live.shelf.endpoint, HoldingKind.OWN, live.run.rank, key)
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
                if (shelf := self._take_out(place, "it was dropped")) is not None:
                    self._remove(shelf, place)
            for shelf in self._shelves_of(folder):
                for holding in Stored(shelf).drop(key):
                    self._miss_stored(holding)

    def _take_out(self, place: Place, why: str) -> Shelf | None:
        """Tell that a part is held no more; return where it is to be removed."""
        with self._lock:
            there = self._held.pop(place, None) is not None
            shelf = self._shelves.get((place.folder, place.endpoint))
        if there:
            self._miss(place, why)
        return shelf if there else None

    def _remove(self, shelf: Shelf, place: Place) -> None:
        try:
            # It may have come again meanwhile.
            if place not in self._held:
                shelf.remove(layout.parents(place), layout.named(place.key))
        except OSError as error:
            _log.warning("not removed", folder=place.folder, step=place.key, reason=str(error))

    def _note(self, holding: Holding) -> None:
        try:
            Stored(self._shelf(holding.folder, holding.endpoint)).add(holding)
        except (AgentError, OSError) as error:
            _log.warning("not noted", folder=holding.folder, reason=str(error))

    def _miss(self, place: Place, why: str) -> None:
        holding = Holding(
            folder=place.folder, key=place.key, rank=place.rank, endpoint=place.endpoint,
            kind=HoldingKind.MISSING, why=why[:500], seen_at=self._clock(),
        )  # fmt: skip
        self._feed.tell(holding, place.kind)

    def _miss_stored(self, holding: Holding) -> None:
        place = Place(
            holding.folder, holding.endpoint, HoldingKind.STORED, holding.rank, holding.key
        )
        self._miss(place, "it was dropped")

    def _compare(self, shelf: Shelf, part: Part) -> tuple[str, ...]:
        place = part.place
        names = (*layout.parents(place), layout.named(place.key), parts.FILES)
        try:
            with shelf.opened(*names) as at:
                return parts.damages(at, part.manifest, self._stopping.is_set)
        except OSError as error:
            return (f"it cannot be read: {error.strerror}",)

    def _verify(self, place: Place, part: Part) -> Verified:
        damages = self._compare(self._shelf(place.folder, place.endpoint), part)
        if damages and self._held.get(place) is part:
            self.damaged(place, "; ".join(damages))
        return Verified(place.key, place.rank, place.endpoint, place.kind, damages)

    def _forget(self, folder: str) -> bool:
        with self._making:
            known = self._folders.pop(folder, None)
        with self._lock:
            lives = [self._lives.pop(p) for p in list(self._lives) if p[0] == folder]
            shelves = [self._shelves.pop(p) for p in list(self._shelves) if p[0] == folder]
            for place in [p for p in self._held if p.folder == folder]:
                del self._held[place]
        for live in lives:
            self._leave(live)
        self._feed.forget(folder)
        self._resuming.forget(folder)
        for shelf in shelves:
            shelf.release()
        buried = self._removal.bury(folder)
        self._removal.dig()
        return known is not None or buried


def _not_asked(folder: str, key: Key, get: GetPart, manifest: Manifest) -> str:
    place = Place(folder, get.endpoint, HoldingKind.COPY, get.part, key)
    why = mismatch(place, manifest)
    if not why and manifest.digest != get.digest:
        why = f"its digest is {manifest.digest}, not {get.digest}"
    return why


def _free(get: GetPart, source: Shelf) -> GetPart:
    """Return what needs no more room where the part lies in the same folder: links are enough."""
    return replace(get, bytes=0) if source.endpoint == get.endpoint else get
