"""Makes, joins, empties and removes the control groups of a lane, one in each hierarchy.

In version 1 a group without ``cpuset.cpus`` admits no process, so they are copied. In version 2 a
group with members cannot hand controllers to its children, so a lane's processes are in a child
of their own, and containers beside it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from testbed.lanes import mounts
from testbed.lanes.mounts import Hierarchy
from testbed.processes import LANE

_INNER = "init"
_POLL_S = 0.02
_COPIED = ("cpuset.cpus", "cpuset.mems")


def mounted() -> tuple[Hierarchy, ...]:
    """Return the hierarchies of this machine."""
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    return mounts.hierarchies(mounts.parse(text))


def make(name: str, within: Iterable[Hierarchy]) -> None:
    """Make the groups of lane ``name``."""
    for hierarchy in within:
        path = _path(name, hierarchy)
        path.mkdir()
        if "cpuset" in hierarchy.controllers:
            for file in _COPIED:
                given = (hierarchy.target / file).read_text(encoding="ascii")
                (path / file).write_text(given, encoding="ascii")
        if hierarchy.unified:
            (path / _INNER).mkdir()


def join(name: str, within: Iterable[Hierarchy], *, top: bool = False) -> None:
    """Move this process into the groups of lane ``name``.

    With ``top`` it joins the group that becomes the root of a new cgroup namespace.
    """
    for hierarchy in within:
        path = _path(name, hierarchy)
        if hierarchy.unified and not top:
            path /= _INNER
        (path / "cgroup.procs").write_text("0", encoding="ascii")


def settle(name: str, within: Iterable[Hierarchy]) -> None:
    """Move this process from the top group of version 2 to the inner one; permit child groups."""
    for hierarchy in within:
        if hierarchy.unified:
            path = _path(name, hierarchy)
            (path / _INNER / "cgroup.procs").write_text("0", encoding="ascii")
            for controller in (path / "cgroup.controllers").read_text(encoding="ascii").split():
                (path / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")


def end_members(name: str, within: Sequence[Hierarchy], limit_s: float) -> bool:
    """Kill every process in the groups of lane ``name``; return whether all have ended."""
    deadline = time.monotonic() + limit_s
    while pids := members(name, within):
        thaw(name, within)  # in version 1 a frozen process does not even handle SIGKILL
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def members(name: str, within: Iterable[Hierarchy]) -> frozenset[int]:
    """Return the pids, as seen here, of all processes in the groups of lane ``name``."""
    found: set[int] = set()
    for hierarchy in within:
        for group in _groups(name, hierarchy):
            with contextlib.suppress(OSError):
                text = (group / "cgroup.procs").read_text(encoding="ascii")
                found.update(int(word) for word in text.split())
    return frozenset(found - {0})


def thaw(name: str, within: Iterable[Hierarchy]) -> None:
    """Thaw every group of lane ``name``, outermost first."""
    for hierarchy in within:
        for group in sorted(_groups(name, hierarchy)):
            for file, text in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
                with contextlib.suppress(OSError):
                    if (group / file).exists():
                        (group / file).write_text(text, encoding="ascii")


def remove(name: str, within: Sequence[Hierarchy], limit_s: float) -> list[str]:
    """Remove the empty groups of lane ``name``; return those that remain."""
    deadline = time.monotonic() + limit_s
    while left := [group for one in within for group in _groups(name, one)]:
        for group in sorted(left, reverse=True):
            with contextlib.suppress(OSError):
                group.rmdir()  # busy until the kernel has removed the last member
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    return [str(group) for group in left]


def processor_s(name: str, within: Iterable[Hierarchy]) -> float:
    """Return the seconds of processor that everything in lane ``name`` has used, 0 if unknown."""
    for hierarchy in within:
        path = _path(name, hierarchy)
        with contextlib.suppress(OSError):
            if "cpuacct" in hierarchy.controllers:
                return int((path / "cpuacct.usage").read_text(encoding="ascii")) / 1e9
        with contextlib.suppress(OSError):
            if hierarchy.unified and (path / "cgroup.procs").exists():
                words = (path / "cpu.stat").read_text(encoding="ascii").split()
                return int(words[words.index("usage_usec") + 1]) / 1e6
    return 0.0


def names(within: Iterable[Hierarchy]) -> frozenset[str]:
    """Return the lanes that have groups."""
    found = (path.name for one in within for path in one.target.glob(f"{LANE}*"))
    return frozenset(name.removeprefix(LANE) for name in found)


def _path(name: str, hierarchy: Hierarchy) -> Path:
    return hierarchy.target / f"{LANE}{name}"


def _groups(name: str, hierarchy: Hierarchy) -> Iterator[Path]:
    for folder, _, _ in os.walk(_path(name, hierarchy)):
        yield Path(folder)
