"""Stores the record of a lane in /run/ll-lanes/NAME, and checks whether the lane lives.

A lane lives as long as its keeper holds the lock on the lane's folder: the kernel frees the lock
when the keeper ends, however it ends. The lock of all lanes is held for moments only, while a
folder is made or judged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.lanes.errors import LaneError

LANES = Path("/run/ll-lanes")
KEEPER_LOG = "keeper.log"

_FILE, _DRAFT = "lane.json", "lane.json.new"
_HELD = "held"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,22}[a-z0-9])?")


@dataclass(slots=True, frozen=True)
class RackLane:
    """One lane that is ready."""

    name: str
    keeper: int
    first: int
    """The pid, outside, of the first process inside, which ends with the keeper."""
    made_at: float
    ports: Mapping[int, int] = field(default_factory=dict)
    """Maps a port of the lane's 127.0.0.1 to the port of the machine's that reaches it."""


def check_name(name: str) -> None:
    """Raise LaneError(invalid) unless ``name`` can be part of paths and control groups."""
    if not _NAME.fullmatch(name):
        raise LaneError(
            "invalid",
            f"{name!r} is not a lane's name",
            object=name,
            hint="use at most 24 small letters, digits and hyphens",
        )


def folder(name: str) -> Path:
    """Return the folder of lane ``name``."""
    return LANES / name


def save(lane: RackLane) -> None:
    """Write the record atomically."""
    draft = folder(lane.name) / _DRAFT
    draft.write_text(json.dumps(dataclasses.asdict(lane), indent=1), encoding="utf-8")
    draft.replace(folder(lane.name) / _FILE)


def load(name: str) -> RackLane | None:
    """Return the record of lane ``name``, None when it is not ready or does not exist."""
    try:
        data: dict[str, Any] = json.loads((folder(name) / _FILE).read_text(encoding="utf-8"))
        ports = {int(inner): int(outer) for inner, outer in data.pop("ports").items()}
        return RackLane(**data, ports=ports)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def names() -> tuple[str, ...]:
    """Return the names of all lanes, living or dead."""
    try:
        return tuple(sorted(entry.name for entry in LANES.iterdir() if entry.is_dir()))
    except OSError:
        return ()


@contextlib.contextmanager
def of_all() -> Iterator[None]:
    """Hold the lock of all lanes: the lock of the folder above them, which always exists."""
    lock = os.open(LANES.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def claim(name: str) -> int:
    """Make the folder of a new lane; return the file that holds it. LaneError(conflict)."""
    with of_all():
        LANES.mkdir(mode=0o755, exist_ok=True)
        try:
            folder(name).mkdir(mode=0o700)
        except FileExistsError:
            raise LaneError(
                "conflict",
                f"there is a lane {name} already",
                object=name,
                hint=f"end it with `lightloom testbed down --name {name}`",
            ) from None
        held = _open(name)
        fcntl.flock(held, fcntl.LOCK_EX)
        return held


def seize(name: str) -> int | None:
    """Adopt a lane whose keeper is gone; return the file that holds it, None if it lives."""
    with of_all():
        try:
            held = _open(name)
        except OSError:
            return None  # removed meanwhile
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            return None
        return held


def forget(name: str) -> None:
    """Remove the folder of a lane, and with the last lane the folder of all."""
    with of_all():
        shutil.rmtree(folder(name), ignore_errors=True)
        with contextlib.suppress(OSError):
            LANES.rmdir()


def holds(pid: int, name: str) -> bool:
    """Whether a process has the file open that holds lane ``name``, as its keeper has."""
    try:
        entries = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for entry in entries:
        with contextlib.suppress(OSError):  # closed meanwhile
            if entry.readlink() == folder(name) / _HELD:
                return True
    return False


def _open(name: str) -> int:
    return os.open(folder(name) / _HELD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
