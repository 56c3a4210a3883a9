"""Works on the directories of a volume by descriptor, and follows no link.

A job can rename its own directories and plant links in them at any moment, so the check of a path
is void a moment later. Each directory is opened by itself, below one that is open.
Long work is a generator: each step handles at most one entry.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from container_mgr.users import RankUser
from container_mgr.values import AgentError

MAX_DEPTH = 100
"""Levels of directories that are measured; each holds two descriptors."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_OURS = 0o022


@dataclass(slots=True)
class Measure:
    """What a directory holds: bytes of disk, and entries. ``too_deep``: part of it is not read."""

    bytes: int = 0
    files: int = 0
    too_deep: bool = False


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open an absolute path, component by component. OSError(ENOTDIR) for a link on the way."""
    at = os.open("/", _DIRECTORY)
    try:
        for part in path.parts[1:]:
            below = os.open(part, _DIRECTORY, dir_fd=at)
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)


@contextmanager
def opened_in(at: int, *names: str) -> Iterator[int]:
    """Open a directory below an open one. OSError(ENOTDIR) for a link."""
    descriptor = os.dup(at)
    try:
        for name in names:
            below = os.open(name, _DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def own(at: int, name: str, mode: int, obj: str) -> Iterator[int]:
    """Open the agent's own directory ``name``, made with ``mode`` if absent.

    Raises AgentError(conflict) when another account owns it or may write to it.
    """
    with suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=at)
        os.chmod(name, mode, dir_fd=at)
    try:
        descriptor = os.open(name, _DIRECTORY, dir_fd=at)
    except OSError as error:
        raise AgentError(
            "conflict", obj, f"its {name} is not a directory: {error.strerror}",
            "remove it from the volume",
        ) from error  # fmt: skip
    try:
        require_own(descriptor, f"its directory {name}", obj)
        yield descriptor
    finally:
        os.close(descriptor)


def require_own(descriptor: int, what: str, obj: str) -> None:
    """Raise AgentError(conflict) unless only the agent's user may write to a directory."""
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & _NOT_OURS:
        raise AgentError(
            "conflict", obj,
            f"{what} belongs to uid {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}",
            "only root may write there: chown root it and chmod go-w it",
        )  # fmt: skip


def make_for(at: int, name: str, user: RankUser, obj: str) -> bool:
    """Make the directory of one owner, with mode 0700; return whether it is new.

    Raises AgentError(conflict) for something else in its place, or another user's directory.
    """
    new = True
    try:
        os.mkdir(name, 0o700, dir_fd=at)
    except FileExistsError:
        new = False
    try:
        with opened_in(at, name) as descriptor:
            found = os.fstat(descriptor)
            # A crash between the two steps leaves one that is still the agent's, and empty.
            ours = found.st_uid == os.geteuid() and _first(descriptor) is None
            if new or (ours and found.st_uid != user.uid):
                os.fchmod(descriptor, 0o700)
                os.fchown(descriptor, user.uid, user.gid)
            elif found.st_uid != user.uid:
                raise AgentError(
                    "conflict", obj,
                    f"the directory of {name} belongs to uid {found.st_uid},"
                    f" the rank runs as uid {user.uid}",
                    "give the project its uid back, or have the data's owner changed",
                )  # fmt: skip
            os.fsync(at)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise AgentError(
                "conflict", obj, f"a link or a file is in place of the directory of {name}",
                "remove it from the volume",
            ) from error  # fmt: skip
        raise
    return new


def measure(at: int) -> Iterator[Measure]:
    """Measure what lies below an open directory, with one more entry each step.

    Blocks of a file with several names count in parts. Another file system mounted below does
    not count. A file that a process holds open after its last name is removed is not found.
    """
    result = Measure()
    device = os.fstat(at).st_dev
    stack: list[tuple[int, Iterator[os.DirEntry[str]]]] = []
    try:
        top = os.dup(at)
        stack.append((top, _entries(top)))
        while stack:
            descriptor, entries = stack[-1]
            name = next((entry.name for entry in entries), None)
            if name is None:
                os.close(stack.pop()[0])
                continue
            try:
                found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except OSError:  # removed meanwhile
                continue
            if found.st_dev == device:
                result.files += 1
                below = stat.S_ISDIR(found.st_mode)
                result.bytes += found.st_blocks * 512 // (1 if below else max(1, found.st_nlink))
                if below:
                    _descend(stack, name, result)
            yield result
        yield result
    finally:
        for descriptor, _ in stack:
            os.close(descriptor)


def _descend(
    stack: list[tuple[int, Iterator[os.DirEntry[str]]]], name: str, result: Measure
) -> None:
    if len(stack) >= MAX_DEPTH:
        result.too_deep = True
        return
    try:
        below = os.open(name, _DIRECTORY, dir_fd=stack[-1][0])
    except OSError:  # replaced or removed meanwhile
        return
    stack.append((below, _entries(below)))


def _entries(descriptor: int) -> Iterator[os.DirEntry[str]]:
    with os.scandir(descriptor) as entries:
        yield from entries


def empty(at: int) -> Iterator[None]:
    """Remove all that lies in an open directory, one entry each step; deep trees too.

    A directory within is moved up before it is emptied, so that the depth never grows. OSError
    for an entry that cannot be removed.
    """
    number = 0
    while True:
        name = _first(at)
        if name is None:
            return
        if _unlinked(at, name):
            yield
            continue
        with opened_in(at, name) as descriptor:
            while inner := _first(descriptor):
                if not _unlinked(descriptor, inner):
                    number = move_away(descriptor, inner, at, number)
                yield
        os.rmdir(name, dir_fd=at)
        yield


def _first(descriptor: int) -> str | None:
    with os.scandir(descriptor) as entries:
        return next((entry.name for entry in entries), None)


def _unlinked(at: int, name: str) -> bool:
    """Remove a file or an empty directory; return whether that worked."""
    try:
        found = os.stat(name, dir_fd=at, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=at)
            return True
        os.rmdir(name, dir_fd=at)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def move_away(at: int, name: str, to: int, number: int = 0) -> int:
    """Move a directory to ``to``, under the first free number after ``number``; return that."""
    while True:
        number += 1
        try:
            os.stat(str(number), dir_fd=to, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(name, str(number), src_dir_fd=at, dst_dir_fd=to)
            return number
