"""One endpoint's folder of one job: its directories, and the parts in them."""

from __future__ import annotations

import errno
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from agentlink.checkpoints import Folder, Holding, HoldingKind
from agentlink.values import Where
from checkpoints.ledger import Key
from checkpoints.manifest import Manifest
from container_mgr import atomic_file
from container_mgr.checkpoints import layout, parts
from container_mgr.checkpoints.disk import files, space
from container_mgr.checkpoints.disk.space import Space
from container_mgr.checkpoints.parts import About
from container_mgr.checkpoints.values import HeldPart, PartPlace
from container_mgr.values import AgentError
from container_mgr.volumes import tree

MAX_STEPS = 1024
"""Steps of one kind and rank that are read at a start."""
MAX_RANKS_HELD = 256
"""Ranks whose copies or parities one endpoint's folder has."""
MAX_STORED = 256
"""Notes of one endpoint's folder: the newest steps."""
_OURS = (
    *(layout.HELD, layout.COPIES, layout.PARITY, layout.STAGED),
    *(layout.RESTORE, layout.ARRIVING, layout.REMOVED),
)

_log = structlog.get_logger("container_mgr.checkpoints.rank_folder")


@dataclass(slots=True, frozen=True)
class Staged:
    """A part from which a rank will start."""

    key: Key
    rank: int
    """The rank that starts from it."""
    name: str
    """Its directory below ``staged``."""
    manifest: Manifest
    about: About


class RankFolder:
    """The methods block. Several threads may use it at a time."""

    def __init__(
        self, root: Path, folder: Folder, endpoint: str, place: Space, stopped: Callable[[], bool]
    ) -> None:
        """``stopped`` returns whether the agent ends; long work then raises AgentEndingError."""
        self.folder = folder
        self.endpoint = endpoint
        self.path = root / folder.name / endpoint
        self.durable = folder.where is Where.DISK
        self.stopped = stopped
        self._place = place
        self._kernel = False
        self._ready = False
        self.noting = threading.Lock()
        """Held by who changes ``stored.json``."""
        self._lock = threading.Lock()
        """Held while directories change their names, never during long work."""
        self._cleaning = threading.Lock()
        self._numbers = itertools.count(1)

    def prepare(self) -> None:
        """Make the directories. Raises OSError, AgentError."""
        with self._lock:
            if self._ready:
                return
            with tree.opened(self.path.parent) as at, suppress(FileExistsError):
                os.mkdir(self.endpoint, 0o700, dir_fd=at)
            self._kernel = self._place.prepare(self.path, self.folder)
            with tree.opened(self.path) as at:
                for name in _OURS:
                    # The rank sees what is restored.
                    mode = 0o755 if name == layout.RESTORE else 0o700
                    with tree.own(at, name, mode, self.folder.name):
                        pass
            self._ready = True

    def release(self) -> None:
        """Unmount its file system. Raises OSError."""
        with self._lock:
            self._ready = False
            self._place.release(self.path)

    @contextmanager
    def opened(self, *names: str) -> Iterator[int]:
        """Open it, or a directory in it."""
        with tree.opened(self.path) as at, tree.opened_in(at, *names) as folder:
            yield folder

    def require(self, size_bytes: int, rule: str = "") -> None:
        """Raise AgentError(failed) unless so many bytes more fit; see :func:`space.require`."""
        with self.opened() as at:
            space.require(at, self.folder, size_bytes, kernel=self._kernel, rule=rule)

    def why_full(self) -> str:
        """Return the message for a full folder; empty when it has room."""
        with self.opened() as at:
            return space.is_full(at, self.folder, kernel=self._kernel)

    def excess(self) -> str:
        """Return why the rank must end, as nothing else keeps it from filling the disk.

        It applies on disks with quotas too: these limit bytes, and a million empty files use
        none; and the owner of a file can give it to another project, which has another limit.
        """
        if not self.durable and self._kernel:
            return ""
        with self.opened() as at:
            return space.excess(at, self.folder)

    def arrive(self) -> str:
        """Make the directory of a part that arrives, with ``files``; return its name."""
        name = str(next(self._numbers))
        with self.opened(layout.ARRIVING) as at:
            os.mkdir(name, 0o700, dir_fd=at)
            with tree.opened_in(at, name) as own:
                os.mkdir(parts.FILES, 0o700, dir_fd=own)
        return name

    def install(self, name: str, parents: Sequence[str], final: str) -> None:
        """Give what arrived its place; what was there is removed. Raises OSError."""
        with self._lock, self.opened() as at, tree.opened_in(at, layout.ARRIVING) as arriving:
            above = at
            opened: list[int] = []
            try:
                for part in parents:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=above)
                        if self.durable:
                            os.fsync(above)
                    above = os.open(
                        part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
                        dir_fd=above,
                    )  # fmt: skip
                    opened.append(above)
                self._move_away(at, above, final)
                os.rename(name, final, src_dir_fd=arriving, dst_dir_fd=above)
                if self.durable:
                    os.fsync(above)
            finally:
                for descriptor in opened:
                    os.close(descriptor)
        self.clean(layout.REMOVED)

    def give_up(self, name: str) -> None:
        """Remove what arrived. Raises OSError."""
        with self.opened(layout.ARRIVING) as at:
            files.remove(at, name, self.stopped)

    def remove(self, parents: Sequence[str], name: str) -> None:
        """Remove a part if it exists. Raises OSError."""
        with (
            suppress(FileNotFoundError),
            self._lock,
            self.opened() as at,
            tree.opened_in(at, *parents) as above,
        ):
            self._move_away(at, above, name)
            if self.durable:
                os.fsync(above)
        self.clean(layout.REMOVED)

    def clean(self, *names: str) -> None:
        """Remove all that lies in one of its directories. Raises OSError.

        What cannot be removed stays until the next time, and nothing else waits for it.
        """
        with self._cleaning, self.opened(*names) as at:
            try:
                files.empty(at, self.stopped)
            except OSError as error:
                _log.error("not removed", folder=str(self.path.joinpath(*names)), reason=str(error))

    def _move_away(self, at: int, above: int, name: str) -> None:
        """Move a directory out of reach in one step."""
        # Not a number: what is being emptied is given numbers meanwhile.
        away = f"{time.time_ns()}-{next(self._numbers)}"
        with suppress(FileNotFoundError), tree.opened_in(at, layout.REMOVED) as removed:
            files.move(above, name, removed, away)

    def renew(self, name: str, mode: int, ids: tuple[int, int]) -> None:
        """Put an empty directory in place of ``name``, whatever it is. Raises OSError."""
        with self._lock, self.opened() as at:
            self._move_away(at, at, name)
            os.mkdir(name, mode, dir_fd=at)
            with tree.opened_in(at, name) as new:
                os.fchmod(new, mode)
                os.fchown(new, *ids)
        self.clean(layout.REMOVED)

    def write(self, name: str, text: str) -> None:
        """Replace a record. Raises OSError."""
        atomic_file.write(self.path / name, text, mode=0o600, durable=self.durable)

    def read(self, name: str, most: int = 1 << 20) -> bytes | None:
        """Return a record; None without one. Raises OSError."""
        try:
            with self.opened() as at, files.opened(at, name) as file:
                return os.read(file, most)
        except (FileNotFoundError, files.ChangedError):
            return None

    def part(self, place: PartPlace, found: parts.StoredPart) -> HeldPart:
        """Return a part of this folder."""
        root = self.path.joinpath(*layout.parents(place), layout.named(place.key), parts.FILES)
        return HeldPart(place, root, found.manifest, found.covers, found.members)

    def stocktake(self) -> Iterator[tuple[PartPlace, HeldPart | None, About, str]]:
        """Yield every part: whole, or None and why not. Raises OSError."""
        for kind, name in (
            (HoldingKind.OWN, layout.HELD),
            (HoldingKind.COPY, layout.COPIES),
            (HoldingKind.PARITY, layout.PARITY),
        ):
            for rank, parents in self._ranks(kind, name):
                for key in self._keys(*parents):
                    with self.opened(*parents, layout.named(key)) as at:
                        try:
                            found = parts.read(at)
                        except (OSError, ValueError) as error:
                            place = PartPlace(
                                self.folder.name, self.endpoint, kind, max(rank, 0), key
                            )
                            yield place, None, About(), str(error)
                            continue
                    whose = found.manifest.rank if kind is HoldingKind.OWN else rank
                    place = PartPlace(self.folder.name, self.endpoint, kind, whose, key)
                    why = mismatch(place, found.manifest)
                    yield place, None if why else self.part(place, found), found.about, why

    def _ranks(self, kind: HoldingKind, name: str) -> Iterator[tuple[int, tuple[str, ...]]]:
        if kind is HoldingKind.OWN:
            yield -1, (name,)
            return
        with self.opened(name) as at:
            for rank in files.names(at, MAX_RANKS_HELD):
                if rank.isdecimal():
                    yield int(rank), (name, rank)

    def _keys(self, *parents: str) -> list[Key]:
        with self.opened(*parents) as at:
            names = files.names(at, MAX_STEPS)
        return [key for name in names if (key := layout.key_of(name)) is not None]

    def staged(self, key: Key) -> list[Staged]:
        """Return the parts from which ranks can start at a step; damaged ones are left out."""
        found: list[Staged] = []
        try:
            with self.opened(layout.STAGED, layout.named(key)) as above:
                for name in files.names(above, MAX_STEPS):
                    with suppress(OSError, ValueError), tree.opened_in(above, name) as at:
                        one = parts.read(at)
                        found.append(Staged(key, one.about.rank, name, one.manifest, one.about))
        except FileNotFoundError:
            return []
        return sorted(found, key=lambda one: one.manifest.rank)

    def unstage(self, but: Key | None) -> None:
        """Remove what was staged for other steps than this. Raises OSError."""
        self.discard_staged(but)
        self.clean(layout.REMOVED)

    def discard_staged(self, but: Key | None) -> None:
        """Move what was staged for other steps than this out of reach. Raises OSError."""
        with self._lock, self.opened() as at, tree.opened_in(at, layout.STAGED) as staged:
            for name in files.names(staged, MAX_STEPS):
                if but is None or name != layout.named(but):
                    self._move_away(at, staged, name)


def mismatch(place: PartPlace, manifest: Manifest) -> str:
    """Return why a manifest does not belong to a part of this place; empty if it does."""
    if (manifest.job, manifest.step, manifest.epoch) != (place.folder, *place.key):
        return f"it is of step {manifest.step} of run {manifest.epoch} of {manifest.job[:80]}"
    if manifest.rank != place.rank:
        return f"it is of rank {manifest.rank}, not {place.rank}"
    return ""


def refused(folder: str, error: OSError | files.ChangedError) -> AgentError:
    """Return the fault of a file system that refused."""
    if isinstance(error, OSError) and is_full(error):
        return AgentError("failed", folder, f"the folder is full: {error.strerror}")
    return AgentError("failed", folder, f"its files cannot be used: {error}")


def is_full(error: OSError) -> bool:
    """Return whether a file system has no room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class Stored:
    """The notes of one folder. All methods block and raise OSError."""

    def __init__(self, rank_folder: RankFolder) -> None:
        self._rank_folder = rank_folder

    def all(self) -> list[Holding]:
        """Return all notes; those that are damaged are left out."""
        content = self._rank_folder.read(layout.STORED)
        found: list[Holding] = []
        with suppress(ValueError, TypeError):
            for one in json.loads(content or b"[]"):
                with suppress(KeyError, TypeError, ValueError):
                    found.append(self._read(one))
        return found

    def add(self, holding: Holding) -> None:
        """Note a part."""
        with self._rank_folder.noting:
            kept = [one for one in self.all() if (one.key, one.rank) != (holding.key, holding.rank)]
            kept = sorted([*kept, holding], key=lambda one: one.key)[-MAX_STORED:]
            self._write(kept)

    def drop(self, key: Key) -> list[Holding]:
        """Drop a step; return its notes."""
        with self._rank_folder.noting:
            before = self.all()
            gone = [one for one in before if one.key == key]
            if gone:
                self._write([one for one in before if one.key != key])
            return gone

    def _read(self, one: object) -> Holding:
        if not isinstance(one, list):
            raise TypeError
        step, epoch, rank, digest, size, seen_at = one
        return Holding(
            folder=self._rank_folder.folder.name,
            key=Key(int(step), int(epoch)),
            rank=int(rank),
            endpoint=self._rank_folder.endpoint,
            kind=HoldingKind.STORED,
            digest=str(digest),
            bytes=int(size),
            seen_at=float(seen_at),
        )

    def _write(self, kept: list[Holding]) -> None:
        rows = [[*one.key, one.rank, one.digest, one.bytes, one.seen_at] for one in kept]
        self._rank_folder.write(layout.STORED, json.dumps(rows))
