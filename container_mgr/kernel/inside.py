"""Reads files in a container's file system safely.

Paths below ``/proc/PID/root`` are resolved in the reading process: an absolute link in an image
leads to the machine's own files, and a pipe in place of a file blocks the reader. So this module
opens each directory by itself, follows no link, and never waits for a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def has(pid: int, directory: str, name: str, proc: Path = Path("/proc")) -> bool:
    """Return whether this name exists, as a file of any kind; a link is not followed.

    ``directory`` is absolute in the container of process ``pid``.
    """
    try:
        with _within(pid, directory, proc) as at:
            os.stat(name, dir_fd=at, follow_symlinks=False)
    except OSError:
        return False
    return True


def read(pid: int, directory: str, name: str, limit: int, proc: Path = Path("/proc")) -> bytes:
    """Return the first ``limit`` bytes of a file of sysfs or procfs. OSError."""
    with _within(pid, directory, proc) as at:
        descriptor = os.open(name, _FILE, dir_fd=at)
        try:
            return os.read(descriptor, limit)
        finally:
            os.close(descriptor)


def open_directory(pid: int, directory: str, proc: Path = Path("/proc")) -> int:
    """Return a descriptor of a directory, which can be listed. It pins the file system. OSError."""
    with _within(pid, directory, proc) as at:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)


@contextmanager
def _within(pid: int, directory: str, proc: Path) -> Iterator[int]:
    at = os.open(proc / str(pid) / "root", _DIRECTORY)
    try:
        for part in directory.strip("/").split("/"):
            below = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)
