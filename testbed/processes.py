"""Finds processes and mounts that belong to one run directory, from kernel data."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

LANE = "ll-lane-"
"""Prefix of the control groups of lanes (``testbed.lanes``), which hold racks of their own.

Inside a lane its cgroup namespace hides the prefix; outside it shows which lane has a process.
"""

_PROC = Path("/proc")
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD (linux/sched.h) in field 9 of ``stat``."""
_YOUNG_S = 60.0
_CGROUPS = Path("/sys/fs/cgroup")


def running(program: str, path: Path) -> list[int]:
    """Return live processes whose name starts with ``program``, with ``path`` in an argument."""
    found = []
    for pid in _pids():
        with suppress(OSError):
            name, *arguments = (_PROC / str(pid) / "cmdline").read_bytes().decode().split("\0")
            if Path(name).name.startswith(program) and any(str(path) in a for a in arguments):
                found.append(pid)
    return found


def lane_of(cgroup: str) -> str | None:
    """Return the lane to which a control group's path belongs, None for one of the machine's."""
    for part in cgroup.split("/"):
        if part.startswith(LANE):
            return part.removeprefix(LANE)
    return None


def await_named(within_s: float = 10.0) -> None:
    """Wait until no young process is in the middle of exec, at most ``within_s``.

    During exec the kernel shows neither arguments nor environment (for long on a machine with
    cold caches), so the owner of the process is unknown.
    """
    deadline = time.monotonic() + within_s
    while any(map(_nameless, _pids())) and time.monotonic() < deadline:
        time.sleep(0.02)


def _nameless(pid: int) -> bool:
    entry = _PROC / str(pid)
    try:
        if (entry / "cmdline").read_bytes():
            return False
        text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
        uptime_s = float((_PROC / "uptime").read_text(encoding="ascii").split()[0])
    except OSError:
        return False
    born_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return not int(fields[6]) & _KERNEL_THREAD and uptime_s - born_s < _YOUNG_S


def in_cgroups(names: Collection[str]) -> list[int]:
    """Return live processes whose cgroup path contains one of ``names`` (container ids)."""
    if not names:
        return []
    found = []
    for pid in _pids():
        with suppress(OSError):
            text = (_PROC / str(pid) / "cgroup").read_text(encoding="utf-8")
            if any(name in text for name in names):
                found.append(pid)
    return found


def send(pid: int, sig: signal.Signals) -> None:
    """Signal one process; ignore a process that has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, sig)


def thaw(pid: int) -> None:
    """Thaw ``pid``'s cgroup, in cgroup v1 or v2."""
    with suppress(OSError):
        for line in (_PROC / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "freezer":
                state = _CGROUPS / "freezer" / path.lstrip("/") / "freezer.state"
                state.write_text("THAWED", encoding="ascii")
            elif controllers == "":
                frozen = _CGROUPS / path.lstrip("/") / "cgroup.freeze"
                if frozen.exists():
                    frozen.write_text("0", encoding="ascii")


def remove_cgroups(name: str) -> None:
    """Remove the empty cgroup ``name`` and its children from every hierarchy."""
    for top in (*_CGROUPS.glob(f"*/{name}"), _CGROUPS / name):
        for path in (*sorted(top.rglob("*/"), reverse=True), top):
            with suppress(OSError):  # missing, not a directory, or in use
                path.rmdir()


def unmount_below(*roots: Path, itself: Path | None = None) -> None:
    """Unmount the mounts of a killed engine under ``roots``, deepest first, and ``itself``."""
    targets = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        target = line.split(" ")[4].encode().decode("unicode_escape")
        inside = any(root in Path(target).parents for root in roots)
        if inside or Path(target) == itself:
            targets.append(target)
    for target in sorted(targets, key=len, reverse=True):
        subprocess.run(
            ["umount", "--lazy", target], check=False, timeout=10, stderr=subprocess.DEVNULL
        )


def _pids() -> Iterator[int]:
    me = os.getpid()
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == me:
            continue
        if not _is_zombie(entry) and not _in_lane(entry):
            yield int(entry.name)


def _in_lane(entry: Path) -> bool:
    try:
        text = (entry / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return lane_of(text.replace("\n", "/").replace(":", "/")) is not None


def _is_zombie(entry: Path) -> bool:
    try:
        stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"
