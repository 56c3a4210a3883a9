"""Finds and removes everything that a rack left on the machine, also without its record.

Kernel objects are identified by name (``ll-`` namespaces, links, control groups), processes by
kernel data: the marker in their environment, their namespace or their control group. Nothing
is ended by its program's name. What belongs to a lane (``testbed.lanes``) is another rack's.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from pyroute2 import IPRoute, netns
from pyroute2.netlink.exceptions import NetlinkError

from testbed import processes as kernel_view
from testbed.rack import procfs
from testbed.rack.layout import PREFIX
from testbed.rack.process import end_all

NETNS_DIR = Path("/run/netns")
CGROUP_DIR = Path("/sys/fs/cgroup")
CGROUP_TIMEOUT_S = 30.0
LAST_S = 60.0
"""Time limit for new processes that appear while a rack is ended."""


@dataclass(slots=True, frozen=True)
class Remains:
    """Existing objects: names, and processes as (pid, start ticks)."""

    namespaces: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    processes: tuple[tuple[int, int], ...] = ()
    files: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    """Containers of the host's engine; :func:`find` does not search for them."""

    @property
    def empty(self) -> bool:
        """Whether nothing remains."""
        return not any(self.summary())

    def summary(self) -> list[str]:
        """Return one line per kind of remaining object, for a message."""
        kinds = (
            ("namespaces", self.namespaces),
            ("links", self.links),
            ("control groups", self.cgroups),
            ("mounts", self.mounts),
            ("processes", tuple(str(pid) for pid, _ in self.processes)),
            ("files", self.files),
            ("containers", self.containers),
        )
        return [f"{kind} {', '.join(names)}" for kind, names in kinds if names]


def find(run_dir: Path) -> Remains:
    """Return all existing objects of a rack with this run directory."""
    return Remains(
        namespaces=_namespaces(),
        links=_links(),
        cgroups=tuple(str(path) for path in _cgroups()),
        mounts=_mounts(run_dir),
        processes=_processes(run_dir),
        files=(str(run_dir),) if run_dir.exists() else (),
    )


def end_processes(run_dir: Path, *, grace_s: float) -> None:
    """End every process of the rack, including frozen ones and processes that they start."""
    deadline = time.monotonic() + LAST_S
    while (found := _processes(run_dir)) and time.monotonic() < deadline:
        for pid, _ in found:
            kernel_view.thaw(pid)  # on cgroup v1 a frozen process does not even handle SIGKILL
        end_all(found, grace_s=grace_s)


def remove_kernel_objects(run_dir: Path) -> None:
    """Remove mounts, namespaces, links and control groups. Processes must have ended."""
    kernel_view.unmount_below(run_dir)
    for name in _namespaces():
        with contextlib.suppress(OSError):
            netns.remove(name)  # lazy unmount, then unlink
        with contextlib.suppress(OSError):
            (NETNS_DIR / name).unlink(missing_ok=True)  # a bare file or symbolic link
    _remove_links()
    deadline = time.monotonic() + CGROUP_TIMEOUT_S
    while left := _cgroups():
        for path in left:
            with contextlib.suppress(OSError):
                path.rmdir()  # busy until the kernel has removed the last member
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


def _namespaces() -> tuple[str, ...]:
    if not NETNS_DIR.is_dir():
        return ()
    return tuple(sorted(p.name for p in NETNS_DIR.iterdir() if p.name.startswith(PREFIX)))


def _links() -> tuple[str, ...]:
    with IPRoute() as root:
        names = [str(link.get_attr("IFLA_IFNAME")) for link in root.get_links()]
    return tuple(sorted(name for name in names if name.startswith(PREFIX)))


def _remove_links() -> None:
    with IPRoute() as root:
        for name in _links():
            with contextlib.suppress(NetlinkError):  # removed with its other end
                root.link("del", ifname=name)


def _cgroups() -> list[Path]:
    """Return control groups ``ll-*`` of all hierarchies with their children, deepest first."""
    found: list[Path] = []
    for folder, names, _ in os.walk(CGROUP_DIR, topdown=True):
        for name in names:
            path = Path(folder) / name
            if kernel_view.lane_of(str(path)) is None and any(
                map(_is_ours, path.relative_to(CGROUP_DIR).parts)
            ):
                found.append(path)
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def _is_ours(cgroup: str) -> bool:
    """Whether a control group belongs to a rack; systemd puts ll-rack.slice into ll.slice."""
    return cgroup.startswith(PREFIX) or cgroup == "ll.slice"


def _mounts(run_dir: Path) -> tuple[str, ...]:
    found: list[str] = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        target = Path(line.split(" ")[4].encode().decode("unicode_escape"))
        if target.is_relative_to(run_dir):
            found.append(str(target))
    return tuple(found)


def _processes(run_dir: Path) -> tuple[tuple[int, int], ...]:
    spaces = {procfs.identity(NETNS_DIR / name) for name in _namespaces()} - {None}
    spared = procfs.own_line()
    found: list[tuple[int, int]] = []
    for pid in procfs.pids():
        ticks = procfs.start_ticks(pid)
        groups = procfs.cgroup_paths(pid)
        if ticks is None or pid in spared or any(map(kernel_view.lane_of, groups)):
            continue
        if (
            procfs.environment_value(pid, procfs.MARKER) == str(run_dir)
            or procfs.netns_identity(pid) in spaces
            or any(_is_ours(part) for path in groups for part in path.split("/"))
        ):
            found.append((pid, ticks))
    return tuple(found)
