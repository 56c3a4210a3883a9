"""Identifies processes by pid and start time, so that a reused pid is never mistaken.

It reads /proc (proc(5)): field 22 of ``stat`` is the start time in clock ticks since boot.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
MARKER = "LIGHTLOOM_RACK"
"""Environment variable of every process of a rack and its descendants."""


def parse_stat(text: str) -> tuple[str, int, int]:
    """Return (state, parent pid, start ticks) of one ``/proc/<pid>/stat`` line.

    The command name may contain spaces and brackets, so fields are counted from the last ``)``.
    """
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[1]), int(fields[19])


def start_ticks(pid: int) -> int | None:
    """Return when ``pid`` started, or None when it is gone or a zombie."""
    try:
        state, _, ticks = parse_stat((PROC / str(pid) / "stat").read_text(encoding="utf-8"))
    except (OSError, ValueError, IndexError):
        return None
    return None if state in ("Z", "X", "x") else ticks


def started_at(pid: int) -> float:
    """Return when ``pid`` started, in seconds since 1970. Raises OSError when it is gone."""
    ticks = start_ticks(pid)
    if ticks is None:
        raise ProcessLookupError(pid)
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - up_s + ticks / os.sysconf("SC_CLK_TCK")


def pids() -> Iterator[int]:
    """Yield the pids of all current processes."""
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            yield int(entry.name)


def children(parent: int) -> tuple[int, ...]:
    """Return the processes whose parent is ``parent``."""
    found: list[int] = []
    for pid in pids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8")
            if parse_stat(stat)[1] == parent:
                found.append(pid)
    return tuple(found)


def own_line() -> frozenset[int]:
    """Return this process and its ancestors, which a rack that goes down must not end."""
    line: list[int] = []
    pid = os.getpid()
    while pid > 0 and pid not in line:
        line.append(pid)
        try:
            _, pid, _ = parse_stat((PROC / str(pid) / "stat").read_text(encoding="utf-8"))
        except (OSError, ValueError, IndexError):
            break
    return frozenset(line)


def environment_value(pid: int, name: str) -> str | None:
    """Return a variable of a process's initial environment, None when absent or unreadable."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    wanted = name.encode() + b"="
    for entry in raw.split(b"\0"):
        if entry.startswith(wanted):
            return entry[len(wanted) :].decode(errors="replace")
    return None


def identity(path: Path) -> tuple[int, int] | None:
    """Return the unique identity of a file or namespace, None when it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def netns_identity(pid: int) -> tuple[int, int] | None:
    """Return the identity of the network namespace of ``pid``."""
    return identity(PROC / str(pid) / "ns" / "net")


def cgroup_paths(pid: int) -> tuple[str, ...]:
    """Return the cgroups of ``pid`` in all hierarchies (cgroups(7))."""
    try:
        text = (PROC / str(pid) / "cgroup").read_text(encoding="utf-8")
    except OSError:
        return ()
    return tuple(line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2)
