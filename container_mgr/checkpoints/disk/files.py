"""Works on the files of checkpoints by descriptor, and follows no link.

A program can rename its directories and plant links in them at any moment, so every component of
a path is opened by itself, below a directory that is open. All functions block.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from checkpoints.manifest import Sum, measure
from checkpoints.rules import MAX_ENTRIES, MAX_HEAD, CheckpointRule, EntryKind, FolderEntry
from checkpoints.values import MAX_DEPTH
from container_mgr.volumes import tree

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_COPY = 1 << 24
MAX_NAMES = 1 << 21
"""Bytes of all paths below one folder; with more, no step of it is trusted."""
MAX_HEADS = 1 << 22
"""Bytes of all small files that are read for a rule."""
MAX_HOLES = 1 << 16
"""Holes of all files of a step."""
_OPEN_DIRECTORIES = 64
_GET_FLAGS, _SET_FLAGS, _FLAGS = 0x80086601, 0x40086602, struct.Struct("=Ixxxx")
"""FS_IOC_GETFLAGS and FS_IOC_SETFLAGS of linux/fs.h: the size of a long, of which an int counts."""
_KEPT = 0x10 | 0x20
"""FS_IMMUTABLE_FL and FS_APPEND_FL: not even root removes such a file, or one in such a folder."""
_UNLOCKS = 1 << 18
"""More than a folder has entries (``space.INODES``): each has its flags cleared once."""


class ChangedError(Exception):
    """A tree is not as it was listed: the program writes in it."""


class AgentEndingError(Exception):
    """The agent ends."""


@dataclass(slots=True, frozen=True)
class Stamp:
    """What distinguishes a file from one with other content, without reading it."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int
    """Grows with every write, rename and link; no program can set it."""


@dataclass(slots=True, frozen=True)
class Listing:
    """All below a directory: at most ``MAX_ENTRIES`` + 1 entries, and the stamps of files."""

    entries: Sequence[FolderEntry]
    stamps: Mapping[str, Stamp]
    folders: Sequence[str]
    """Names of the directories at the top."""


def listing(
    at: int,
    rule: CheckpointRule = CheckpointRule(),  # noqa: B008 - frozen
    owners: Collection[int] | None = None,
) -> Listing:
    """List an open directory. What vanishes meanwhile is left out. Raises OSError.

    Of names that are too long together the list is overfull, as of too many entries. What belongs
    to none of the ``owners`` (uids; None for all) is FOREIGN, and is neither read nor entered.
    """
    entries: list[FolderEntry] = []
    length = heads = 0
    stamps: dict[str, Stamp] = {}
    folders: list[str] = []
    device = os.fstat(at).st_dev
    waiting: list[tuple[str, ...]] = [()]
    while waiting and len(entries) <= MAX_ENTRIES:
        parts = waiting.pop()
        length += sum(len(os.fsencode(part)) for part in parts)
        with suppress(FileNotFoundError, NotADirectoryError), tree.opened_in(at, *parts) as folder:
            for name in _names(folder, MAX_ENTRIES + 1 - len(entries)):
                path = "/".join((*parts, name))
                length += len(os.fsencode(path))
                if length > MAX_NAMES:
                    entries += [FolderEntry(path)] * (MAX_ENTRIES + 1 - len(entries))
                    break
                try:
                    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                except OSError:  # removed meanwhile
                    continue
                kind = _kind(found, device)
                if owners is not None and found.st_uid not in owners:
                    kind = EntryKind.FOREIGN
                head = b""
                if kind is EntryKind.FILE:
                    stamps[path] = _stamp(found)
                    wanted = name in rule.reads and len(parts) < 2
                    if wanted and found.st_size <= min(MAX_HEAD, MAX_HEADS - heads):
                        head = _head(folder, name)
                        heads += len(head)
                elif kind is EntryKind.FOLDER:
                    if not parts:
                        folders.append(name)
                    if len(parts) < MAX_DEPTH:
                        waiting.append((*parts, name))
                entries.append(FolderEntry(path, kind, found.st_size, found.st_mtime_ns, head))
    return Listing(entries, stamps, folders)


def _names(folder: int, most: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry, _ in zip(entries, range(most), strict=False)]


def _kind(found: os.stat_result, device: int) -> EntryKind:
    if stat.S_ISREG(found.st_mode):
        return EntryKind.FILE
    if stat.S_ISDIR(found.st_mode):
        return EntryKind.FOLDER if found.st_dev == device else EntryKind.OTHER
    return EntryKind.LINK if stat.S_ISLNK(found.st_mode) else EntryKind.OTHER


def _stamp(found: os.stat_result) -> Stamp:
    return Stamp(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _head(folder: int, name: str) -> bytes:
    try:
        with opened(folder, name) as file:
            return os.read(file, MAX_HEAD + 1)
    except (OSError, ChangedError):
        return b""


def written(stamps: Mapping[str, Stamp], paths: Iterable[str]) -> str:
    """Return a digest that changes when one of these files is written or replaced.

    New names of a file do not change it.
    """
    digest = hashlib.sha256()
    for path in sorted(paths):
        one = stamps[path]
        text = f"{path}\0{one.inode}\0{one.size}\0{one.modified_ns}\n"
        digest.update(text.encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]


@contextmanager
def opened(at: int, name: str) -> Iterator[int]:
    """Open a regular file for reading. ChangedError for anything else."""
    try:
        descriptor = os.open(name, _FILE, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENOENT, errno.ENOTDIR):
            raise ChangedError(f"{name[:64]!a} was replaced") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ChangedError(f"{name[:64]!a} is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


class Folders:
    """Opens the parents of many paths below one directory, each once. Close it after use."""

    def __init__(
        self, at: int, *, mode: int | None = None, owner: tuple[int, int] = (0, 0)
    ) -> None:
        """With ``mode``, absent directories are made, of ``owner`` (uid, gid)."""
        self._at = at
        self._mode = mode
        self._owner = owner
        self._open: dict[tuple[str, ...], int] = {}

    def __enter__(self) -> Folders:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def of(self, path: str) -> tuple[int, str]:
        """Return the open parent of a path, and its last name. ChangedError for a link."""
        *parts, name = path.split("/")
        return self._folder(tuple(parts)), name

    def _folder(self, parts: tuple[str, ...]) -> int:
        if not parts:
            return self._at
        if parts in self._open:
            return self._open[parts]
        if len(self._open) >= _OPEN_DIRECTORIES:
            self.__exit__()
        above = self._folder(parts[:-1])
        name = parts[-1]
        if self._mode is not None:
            with suppress(FileExistsError):
                os.mkdir(name, self._mode, dir_fd=above)
                os.chown(name, *self._owner, dir_fd=above, follow_symlinks=False)
        try:
            descriptor = os.open(
                name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ChangedError(f"{name[:64]!a} was replaced") from error
        self._open[parts] = descriptor
        return descriptor


def link(source: int, paths: Iterable[str], target: int, target_mode: int = 0o755) -> None:
    """Give files a second name below ``target``. ChangedError when one is not a file any more.

    Raises OSError(EXDEV) for another file system.
    """
    owner = os.fstat(target)
    with (
        Folders(source) as sources,
        Folders(target, mode=target_mode, owner=(owner.st_uid, owner.st_gid)) as targets,
    ):
        for path in paths:
            (at, name), (to, _) = sources.of(path), targets.of(path)
            try:
                os.link(name, name, src_dir_fd=at, dst_dir_fd=to, follow_symlinks=False)
            except FileNotFoundError as error:
                raise ChangedError(f"{path[:64]!a} was removed") from error
            found = os.stat(name, dir_fd=to, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                os.unlink(name, dir_fd=to)
                raise ChangedError(f"{path[:64]!a} was replaced")


def copy(
    source: int,
    sizes: Mapping[str, int],
    target: int,
    stopped: Callable[[], bool],
    mode: int = 0o600,
) -> None:
    """Copy files of known sizes below ``target``, of whose owner they are.

    ChangedError when a file has another size.
    """
    owner = os.fstat(target)
    ids = owner.st_uid, owner.st_gid
    with Folders(source) as sources, Folders(target, mode=0o755, owner=ids) as targets:
        for path, size in sizes.items():
            (at, name), (to, _) = sources.of(path), targets.of(path)
            with opened(at, name) as reads:
                writes = os.open(name, _NEW, mode, dir_fd=to)
                try:
                    os.fchown(writes, *ids)
                    os.fchmod(writes, mode)
                    left = size
                    while left > 0:
                        if stopped():
                            raise AgentEndingError
                        sent = os.sendfile(writes, reads, None, min(left, _COPY))
                        if sent == 0:
                            raise ChangedError(f"{path[:64]!a} became shorter")
                        left -= sent
                    if os.fstat(reads).st_size != size:
                        raise ChangedError(f"{path[:64]!a} is being written")
                finally:
                    os.close(writes)


def own(at: int, paths: Iterable[str], ids: tuple[int, int], mode: int) -> None:
    """Give files to a user, so that it can read them. Raises ChangedError."""
    with Folders(at) as folders:
        for path in paths:
            folder, name = folders.of(path)
            with opened(folder, name) as file:
                found = os.fstat(file)
                if (found.st_uid, found.st_gid) != ids:
                    os.fchown(file, *ids)
                    os.fchmod(file, mode)


class _Reader:
    """Reads an open file in blocks, until the agent ends, and no more than it is expected to have.

    One byte more shows that the file has grown.
    """

    def __init__(self, descriptor: int, size: int, stopped: Callable[[], bool]) -> None:
        self._descriptor = descriptor
        self._left = size + 1
        self._stopped = stopped

    def read(self, size: int, /) -> bytes:
        if self._stopped():
            raise AgentEndingError
        block = os.read(self._descriptor, min(size, self._left))
        self._left -= len(block)
        return block


def sums(
    at: int, sizes: Mapping[str, int], stopped: Callable[[], bool], *, durable: bool = False
) -> dict[str, Sum]:
    """Return the sums of files of known sizes, without those that are not files any more.

    A file of several names is read once. One with another size is not read any further, and has
    another length in the result. ``durable``: what was read is on disk when this returns.
    """
    found: dict[str, Sum] = {}
    read: dict[tuple[int, int], Sum] = {}
    with Folders(at) as folders:
        for path, size in sizes.items():
            try:
                folder, name = folders.of(path)
                with opened(folder, name) as file:
                    status = os.fstat(file)
                    inode = status.st_dev, status.st_ino
                    if status.st_size != size:
                        found[path] = Sum(status.st_size, 0)
                        continue
                    if inode not in read:
                        if durable:
                            os.fsync(file)
                        read[inode] = measure(_Reader(file, size, stopped))
                    found[path] = read[inode]
            except ChangedError:
                continue
    return found


def stored(at: int, paths: Iterable[str]) -> int:
    """Return how many bytes of files lie outside of holes (lseek(2), SEEK_DATA).

    Raises OSError, ChangedError, and ValueError for too many holes.
    """
    total, left = 0, MAX_HOLES
    with Folders(at) as folders:
        for path in paths:
            folder, name = folders.of(path)
            with opened(folder, name) as file:
                end = 0
                while (start := _data_from(file, end)) is not None:
                    end = os.lseek(file, start, os.SEEK_HOLE)
                    total += end - start
                    left -= 1
                    if left < 0:
                        raise ValueError(f"its files have more than {MAX_HOLES} holes")
    return total


def _data_from(file: int, offset: int) -> int | None:
    try:
        return os.lseek(file, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


def sync_folders(at: int, paths: Iterable[str]) -> None:
    """Make the names of files durable."""
    above = {path.rpartition("/")[0] for path in paths}
    folders = {"/".join(p.split("/")[:n]) for p in above if p for n in range(len(p.split("/")) + 1)}
    for path in sorted(folders | {""}, reverse=True):
        with tree.opened_in(at, *(path.split("/") if path else ())) as folder:
            os.fsync(folder)


def remove(at: int, name: str, stopped: Callable[[], bool] = bool) -> None:
    """Remove a file or a whole tree, if it exists, also one that was made immutable.

    Raises OSError, AgentEndingError.
    """
    for _ in range(_UNLOCKS):
        try:
            _remove(at, name, stopped)
        except PermissionError:
            if not _unlock(at, name):
                raise
        else:
            return
    raise PermissionError(errno.EPERM, "it is made immutable again and again")


def _remove(at: int, name: str, stopped: Callable[[], bool]) -> None:
    try:
        with tree.opened_in(at, name) as folder:
            for _ in tree.empty(folder):
                if stopped():
                    raise AgentEndingError
        os.rmdir(name, dir_fd=at)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        os.unlink(name, dir_fd=at)


def empty(at: int, stopped: Callable[[], bool]) -> None:
    """Remove all that lies in an open directory, and raise the last OSError after all others.

    Raises AgentEndingError.
    """
    stuck: OSError | None = None
    for name in os.listdir(at):
        try:
            remove(at, name, stopped)
        except OSError as error:
            stuck = error
    if stuck is not None:
        raise stuck


def move(at: int, name: str, to: int, new: str) -> None:
    """Move a file or directory, also one that was made immutable. Raises OSError."""
    try:
        os.rename(name, new, src_dir_fd=at, dst_dir_fd=to)
    except PermissionError:
        if not _unlock(at, name):
            raise
        os.rename(name, new, src_dir_fd=at, dst_dir_fd=to)


def _unlock(at: int, name: str) -> bool:
    """Make an entry removable, and what is first in it; return whether something kept it.

    It clears what ``chattr +i`` and ``+a`` set: of the entry, of a directory's first entry, and
    of all that lies in that. Then :func:`tree.empty` can go on.
    """
    changed = _clear_flags(at, name)
    with suppress(FileNotFoundError, NotADirectoryError), tree.opened_in(at, name) as folder:
        for first in _names(folder, 1):
            changed |= _clear_flags(folder, first)
            changed |= _clear_flags_in(folder, first)
    return changed


def _clear_flags_in(at: int, name: str) -> bool:
    changed = False
    with suppress(FileNotFoundError, NotADirectoryError), tree.opened_in(at, name) as folder:
        for inner in _names(folder, _UNLOCKS):
            changed |= _clear_flags(folder, inner)
    return changed


def _clear_flags(at: int, name: str) -> bool:
    """Clear the flags that prevent removal of a file or directory; return whether it had any."""
    try:
        found = os.stat(name, dir_fd=at, follow_symlinks=False)
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            return False
        descriptor = os.open(name, _FILE, dir_fd=at)
    except OSError:  # it vanished, or a lease holds it
        return False
    try:
        flags = bytearray(_FLAGS.size)
        fcntl.ioctl(descriptor, _GET_FLAGS, flags)
        (old,) = _FLAGS.unpack(flags)
        if not old & _KEPT:
            return False
        fcntl.ioctl(descriptor, _SET_FLAGS, _FLAGS.pack(old & ~_KEPT))
    except OSError:  # a file system without flags, or an agent without the capability
        return False
    finally:
        os.close(descriptor)
    return True


def names(at: int, most: int) -> list[str]:
    """Return at most so many names in an open directory."""
    return _names(at, most)
