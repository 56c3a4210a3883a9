"""Keeps a probe's files in a volume, and removes the files of probes that were killed.

Each probe has a directory of its own, ``ll-fio-JOB-RANK`` or ``ll-input-JOB-RANK``, with a locked
file in it. The kernel ends the lock with the probe, also after SIGKILL; the next probe in the
volume removes every directory whose lock is free. On a shared file system the lock must hold
between servers (NFS: not ``local_lock``).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import shutil
import time
from pathlib import Path
from types import TracebackType

LOCK = "lock"
MOST_ENTRIES = 100_000
"""Entries of a volume that are searched."""
TRIES = 20
PAUSE_S = 0.05
"""Between two tries to lock: another probe's sweep holds the lock while it removes the files."""
_OURS = re.compile(r"ll-(fio|input)-[A-Za-z0-9._-]{1,200}")


class ScratchError(Exception):
    """A volume that cannot be written to: why, and what to do."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class Scratch:
    """A directory of this probe in a volume, removed at the end."""

    def __init__(self, volume: Path, name: str) -> None:
        """Remove what killed probes left, then make the directory. Raises ScratchError."""
        if not _OURS.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a probe's directory")
        self.path = volume / name
        try:
            self.removed = sweep(volume)
            self._lock = self._make()
        except OSError as error:
            raise ScratchError(
                f"the volume cannot be written to: {error.strerror}", _fix(error.errno)
            ) from None

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def _make(self) -> int:
        """Return the descriptor of the locked file; another probe may sweep meanwhile."""
        for _ in range(TRIES):
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                if (lock := _locked(self.path)) is not None:
                    return lock
            time.sleep(PAUSE_S)
        raise OSError(errno.EBUSY, "a probe of this name runs already")


def sweep(volume: Path) -> list[str]:
    """Remove the directories of ended probes; return their names. Raises OSError."""
    removed = []
    with os.scandir(volume) as entries:
        names = [
            entry.name
            for entry in itertools.islice(entries, MOST_ENTRIES)
            if _OURS.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    for name in names:
        with contextlib.suppress(OSError):
            lock = _locked(volume / name)
            if lock is not None:
                shutil.rmtree(volume / name)
                os.close(lock)
                removed.append(name)
    return removed


def _locked(folder: Path) -> int | None:
    """Lock a probe's directory; return the descriptor, None if it was removed meanwhile.

    Raises OSError: BlockingIOError while its probe runs.
    """
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(LOCK, flags, 0o600, dir_fd=directory)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there = os.stat(LOCK, dir_fd=directory, follow_symlinks=False)
            if there.st_ino == os.fstat(lock).st_ino:
                return lock
        except FileNotFoundError:
            pass
        except OSError:
            os.close(lock)
            raise
        os.close(lock)
        return None
    finally:
        os.close(directory)


def _fix(number: int | None) -> str:
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "choose a volume of mode rw whose directory belongs to the project's user"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "free space on the volume, raise its quota, or set a smaller `size`"
    return "check the volume: lightloom get volumes"
