"""Keeps a record of each owner's directory, in one small file each.

The files are in the volume, readable by root only, so that they outlive the agent and the server.
A job cannot reach them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from agentlink.values import Scope
from container_mgr import atomic_file

MAX_RECORDS = 10_000
_MAX_BYTES = 4096


@dataclass(slots=True, frozen=True)
class DirectoryRecord:
    """A directory that belongs to one project or job. Times are seconds since 1970."""

    scope: Scope
    owner: str
    uid: int
    created_at: float
    used_at: float
    quota_bytes: int | None = None
    bytes: int | None = None
    """What it holds, as measured at ``measured_at``; None before."""
    files: int | None = None
    measured_at: float | None = None
    too_deep: bool = False
    """Directories are nested too deep to be measured."""
    most_files: int | None = None
    """Limit of entries; None without a quota, and for ranks that started before there was one."""


def read_all(at: int) -> Iterator[DirectoryRecord]:
    """Yield the records in an open directory, at most MAX_RECORDS; torn ones are left out."""
    with os.scandir(at) as entries:
        names = [e.name for e, _ in zip(entries, range(2 * MAX_RECORDS), strict=False)]
    for name in [n for n in names if not n.startswith(".")][:MAX_RECORDS]:
        with suppress(OSError, ValueError, TypeError, KeyError):
            yield _read(at, name)


def read(at: int, scope: Scope, owner: str) -> DirectoryRecord | None:
    """Return one record; None without a readable one."""
    try:
        return _read(at, _name(scope, owner))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write(at: int, record: DirectoryRecord) -> None:
    """Replace a record in one step. Raises OSError."""
    text = json.dumps(asdict(record), sort_keys=True)
    atomic_file.write(_directory(at) / _name(record.scope, record.owner), text, mode=0o600)


def delete(at: int, scope: Scope, owner: str) -> None:
    """Delete a record if it exists."""
    with suppress(FileNotFoundError):
        os.unlink(_name(scope, owner), dir_fd=at)


def _read(at: int, name: str) -> DirectoryRecord:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        fields = json.loads(os.read(descriptor, _MAX_BYTES))
    finally:
        os.close(descriptor)
    record = DirectoryRecord(**{**fields, "scope": Scope(fields["scope"])})
    if name != _name(record.scope, record.owner):
        raise ValueError(f"{name} is the record of {record.owner}")
    return record


def _name(scope: Scope, owner: str) -> str:
    return f"{scope.value}.{owner}"


def _directory(at: int) -> Path:
    """Return a path to an open directory, which no rename can turn into another one."""
    return Path(f"/proc/self/fd/{at}")
