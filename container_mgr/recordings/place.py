"""The directory of a rank's recorders, held open: it stays readable after the container's end.

The rank may do anything in it at any time. So names are matched, no link is followed, only plain
files are opened and never waited for, and no more is read than a recorder writes.
"""

from __future__ import annotations

import os
import select
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from container_mgr.kernel import inside
from container_mgr.kernel.process import open_first
from container_mgr.recordings.shown import RECORD_DIR
from container_mgr.values import Container
from recorder import layout

MOST_FILES = 4
MOST_NAMES = 64
"""The file system of the directory has 16 inodes; hard links make more names."""
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY


@dataclass(slots=True, frozen=True)
class RecordFile:
    """One file: its bytes, or what is wrong with it."""

    name: str
    data: bytes = b""
    problem: str = ""


class RecordingFolder:
    """The directory and the first process of one rank. Not for several threads at once."""

    def __init__(self, pidfd: int, directory: int) -> None:
        self._pidfd = pidfd
        self._directory = directory

    @classmethod
    def open(cls, container: Container, proc: Path = Path("/proc")) -> RecordingFolder:
        """Open it in a running container. OSError when it has ended or has no such directory."""
        pidfd = open_first(container, proc)
        try:
            directory = inside.open_directory(container.pid, RECORD_DIR, proc)
        except OSError:
            os.close(pidfd)
            raise
        place = cls(pidfd, directory)
        if place.ended:  # the number may have been another process's by then
            place.close()
            raise ProcessLookupError(f"{container.key.container} has ended")
        return place

    @property
    def ended(self) -> bool:
        """Whether the rank's first process has ended."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    @property
    def pidfd(self) -> int:
        """The descriptor of the rank's first process, as long as the place is open."""
        return self._pidfd

    def mark(self, name: str) -> None:
        """Leave an empty file that :meth:`marked` finds as long as the rank lives. OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(name, flags, 0o444, dir_fd=self._directory))

    def marked(self, name: str) -> bool:
        """Return whether this name exists; a rank can leave it as well."""
        try:
            os.stat(name, dir_fd=self._directory, follow_symlinks=False)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the directory."""
        os.close(self._pidfd)
        os.close(self._directory)

    def files(self) -> list[RecordFile]:
        """Read the recorders' files, the newest first, at most four. OSError."""
        found: list[tuple[int, str]] = []
        with os.scandir(self._directory) as entries:
            for count, entry in enumerate(entries):
                if count >= MOST_NAMES:
                    break
                if layout.FILE_NAME.fullmatch(entry.name) is None:
                    continue
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, entry.name))
        newest = sorted(found, reverse=True)[:MOST_FILES]
        return [self._read(name) for _, name in newest]

    def _read(self, name: str) -> RecordFile:
        try:
            descriptor = os.open(name, _FILE, dir_fd=self._directory)
        except OSError as error:
            return RecordFile(name, problem=f"cannot be opened: {os.strerror(error.errno or 0)}")
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return RecordFile(name, problem="is not a file")
            if status.st_size != layout.SIZE:
                text = f"has {status.st_size} bytes instead of {layout.SIZE}"
                return RecordFile(name, problem=text)
            return RecordFile(name, os.pread(descriptor, layout.SIZE, 0))
        except OSError as error:
            return RecordFile(name, problem=f"cannot be read: {os.strerror(error.errno or 0)}")
        finally:
            os.close(descriptor)
