"""Looks into a container's file system without being led astray.

The process that looks resolves a path below ``/proc/PID/root``: an absolute link in an image leads
into the machine's own files, and a pipe in the place of a file holds a reader up for ever. So every
directory is entered by itself, none through a link, and no file is waited for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def has(pid: int, directory: str, name: str, proc: Path = Path("/proc")) -> bool:
    """Say whether there is something under this name, whatever it is; a link counts as itself.

    ``directory`` is absolute in the container of process ``pid``.
    """
    try:
        with _within(pid, directory, proc) as at:
            os.stat(name, dir_fd=at, follow_symlinks=False)
    except OSError:
        return False
    return True


def read(pid: int, directory: str, name: str, limit: int, proc: Path = Path("/proc")) -> bytes:
    """Return the first ``limit`` bytes of a file that the kernel keeps. OSError."""
    with _within(pid, directory, proc) as at:
        descriptor = os.open(name, _FILE, dir_fd=at)
        try:
            return os.read(descriptor, limit)
        finally:
            os.close(descriptor)


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
