"""Writes parts to stores, and reads them there. All of it blocks, in threads.

A store is a directory in a volume, which a job may own and change while this runs: everything is
opened below a descriptor, no link is followed, and what was written is read again and compared.
Layout: ``lightloom-checkpoints/FOLDER/STEP.EPOCH/RANK/`` with the files, beside it ``RANK.json``,
the manifest.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from base import clock
from checkpoints import manifest
from checkpoints.ledger import Key
from checkpoints.manifest import Manifest
from container_mgr.checkpoints.disk import files
from container_mgr.checkpoints.values import HeldPart
from container_mgr.transfers import parts
from container_mgr.transfers.gate import Pacer
from container_mgr.transfers.parts import DamagedPartError, Files, PartStream
from container_mgr.transfers.pulling import PullError, Stop
from container_mgr.volumes import tree

TOP = "lightloom-checkpoints"
_BLOCK = 1 << 20
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write(store: Path, folder: str, part: HeldPart, pace: int, stop: Stop) -> None:
    """Write a part durably and compare what is there then.

    Raises DamagedPartError when the part itself is damaged, PullError, EndedError and OSError.
    """
    found, pacer = part.manifest, Pacer(pace, _BLOCK)

    def before(count: int) -> None:
        stop.sleep(pacer.reserve(count, clock.monotonic()))

    name = str(found.rank)
    key = Key(found.step, found.epoch)
    with tree.opened(store) as root, _step_of(root, folder, key, make=True) as at:
        if _whole(at, name, found):
            return
        temporary = f"{name}.tmp"
        for left in (temporary, f"{name}.json.tmp"):
            files.remove(at, left)
        os.mkdir(temporary, 0o755, dir_fd=at)
        try:
            with tree.opened_in(at, temporary) as to:
                _copy(part.root, found, to, before)
                _make_durable(to, os.fstat(root))
            files.remove(at, name)
            _put_manifest(at, name, found, os.fstat(root))
            os.rename(temporary, name, src_dir_fd=at, dst_dir_fd=at)
            os.fsync(at)
        except BaseException:
            with suppress(OSError):
                files.remove(at, temporary)
            raise
        if not _whole(at, name, found):
            raise PullError("what was written to the store differs when it is read again")


@dataclass(slots=True, frozen=True)
class StoredPartRef:
    """A part in a store."""

    store: Path
    folder: str
    key: Key
    rank: int
    digest: str


def read(
    wanted: StoredPartRef,
    receive: Callable[[int], int],
    stop: Stop,
    on_bytes: Callable[[int], None],
) -> Manifest:
    """Copy a part from a store; ``receive`` returns the directory for so many bytes.

    Returns its manifest. Raises PullError, DamagedPartError, EndedError and OSError.
    """
    key, rank, digest = wanted.key, wanted.rank, wanted.digest

    def before(count: int) -> None:
        stop.check()
        on_bytes(count)

    try:
        with (
            tree.opened(wanted.store) as root,
            _step_of(root, wanted.folder, key, make=False) as at,
        ):
            found = _manifest_at(at, str(rank))
            if Key(found.step, found.epoch) != key or found.rank != rank:
                raise PullError("the store has the manifest of another part")
            if found.digest != digest:
                raise PullError(f"the store has the digest {found.digest}, not {digest}")
            with tree.opened_in(at, str(rank)) as source:
                _copy(source, found, receive(found.bytes), before)
    except FileNotFoundError:
        raise PullError(f"the store does not have rank {rank}'s part of step {key.step}") from None
    return found


@contextmanager
def _step_of(root: int, folder: str, key: Key, *, make: bool) -> Iterator[int]:
    """Open the directory of a step; it has the store's owner."""
    owner, at = os.fstat(root), os.dup(root)
    try:
        for name in (TOP, folder, f"{key.step}.{key.epoch}"):
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=at)
                    os.fsync(at)
                    with tree.opened_in(at, name) as new:
                        _set_owner(new, owner)
            with tree.opened_in(at, name) as below:
                os.close(at)
                at = os.dup(below)
        yield at
    finally:
        os.close(at)


def _copy(source: Path | int, found: Manifest, to: int, before: Callable[[int], None]) -> None:
    sink = Files(to, found)
    try:
        with PartStream(source, found) as stream:
            while block := stream.read(_BLOCK):
                before(len(block))
                sink.write(block)
        damages = sink.finish()
    finally:
        sink.close()
    if damages:
        raise DamagedPartError(parts.summary(damages))


def _whole(at: int, name: str, wanted: Manifest) -> bool:
    try:
        with tree.opened_in(at, name) as found:
            return _manifest_at(at, name) == wanted and not parts.damages(found, wanted)
    except (OSError, PullError):
        return False


def _manifest_at(at: int, name: str) -> Manifest:
    descriptor = os.open(f"{name}.json", _READ, dir_fd=at)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PullError("the manifest in the store is not a file")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return manifest.parse(file.read(manifest.MAX_BYTES + 1))
    except ValueError as error:
        raise PullError(f"the manifest in the store cannot be read: {error}") from None
    finally:
        os.close(descriptor)


def _put_manifest(at: int, name: str, found: Manifest, owner: os.stat_result) -> None:
    temporary = f"{name}.json.tmp"
    descriptor = os.open(temporary, _CREATE, 0o644, dir_fd=at)
    with os.fdopen(descriptor, "wb") as file:
        file.write(manifest.dump(found))
        file.flush()
        _set_owner(file.fileno(), owner)
        os.fsync(file.fileno())
    os.rename(temporary, f"{name}.json", src_dir_fd=at, dst_dir_fd=at)


def _make_durable(at: int, owner: os.stat_result) -> None:
    """Synchronise all files and directories below, and give them to the store's owner."""
    for name in os.listdir(at):
        found = os.stat(name, dir_fd=at, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            with tree.opened_in(at, name) as below:
                _make_durable(below, owner)
            continue
        descriptor = os.open(name, _READ, dir_fd=at)
        try:
            _set_owner(descriptor, owner)
            os.fsync(descriptor)
            # Reading it again must ask the disk, or the file server.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    _set_owner(at, owner)
    os.fsync(at)


def _set_owner(descriptor: int, owner: os.stat_result) -> None:
    if os.fstat(descriptor).st_uid != owner.st_uid:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
