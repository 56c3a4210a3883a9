"""The first process of a lane: makes its namespaces and mounts, then waits for its children.

When it ends, the kernel kills every process of the lane, and mounts and networks go with them. It
ends with its keeper, by two ways: the kernel's signal on a parent's death, and a pair of sockets,
whose one end sees that the other is closed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from testbed.lanes import cgroups, clone, kernel, mounts
from testbed.lanes.mounts import Hierarchy

READY = b"ready\n"
_FRESH = (Path("/proc"), Path("/sys"), Path("/run"), Path("/dev/shm"))  # noqa: S108 - own mounts
_CGROUPS = Path("/sys/fs/cgroup")


def live(name: str, keeper: socket.socket) -> int:
    """Set the lane up, send the keeper READY or an error, and stay until it closes its end."""
    kernel.die_with_parent()
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        _settle_in(name)
    except OSError as error:
        keeper.sendall(str(error).encode())
        return 1
    keeper.sendall(READY)
    _wait(keeper)
    return 0


def _settle_in(name: str) -> None:
    within = cgroups.mounted()
    cgroups.join(name, within, top=True)
    kernel.unshare(kernel.OWN)
    cgroups.settle(name, within)
    shortcuts = _shortcuts()
    kernel.mount("none", Path("/"), flags=kernel.REC | kernel.PRIVATE)
    copied = mounts.parse(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    for target in mounts.foreign(copied, _FRESH):
        with contextlib.suppress(OSError):  # it went with a mount above it
            kernel.detach(target)
    _mount_system(within, shortcuts)
    _mount_library(name)
    kernel.mount("none", Path("/"), flags=kernel.REC | kernel.SHARED)
    kernel.raise_loopback()


def _shortcuts() -> dict[str, str]:
    """Return the symbolic links beside version 1's hierarchies: ``cpu`` -> ``cpu,cpuacct``."""
    entries = _CGROUPS.iterdir() if _CGROUPS.is_dir() else ()
    return {entry.name: str(entry.readlink()) for entry in entries if entry.is_symlink()}


def _mount_system(within: Sequence[Hierarchy], shortcuts: dict[str, str]) -> None:
    proc, system, run, shared_memory = _FRESH
    kernel.mount("proc", proc, "proc")
    kernel.mount("sysfs", system, "sysfs")
    kernel.mount("tmpfs", run, "tmpfs", options="mode=755")
    kernel.mount("tmpfs", shared_memory, "tmpfs", options="mode=1777")
    (run / "lock").mkdir(mode=0o1777)
    if all(hierarchy.target != _CGROUPS for hierarchy in within):
        kernel.mount("tmpfs", _CGROUPS, "tmpfs", options="mode=755")
    for hierarchy in sorted(within, key=lambda one: len(one.target.parts)):
        if not hierarchy.target.is_relative_to(_CGROUPS):
            continue
        hierarchy.target.mkdir(exist_ok=True)
        kind = "cgroup2" if hierarchy.unified else "cgroup"
        kernel.mount(kind, hierarchy.target, kind, options=",".join(hierarchy.controllers))
    for shortcut, target in shortcuts.items():
        (_CGROUPS / shortcut).symlink_to(target)


def _mount_library(name: str) -> None:
    own = clone.library(name)
    views = [entry for entry in clone.shared() if (own / entry).is_dir()]
    for entry in views:
        kernel.mount(str(clone.LIBRARY / entry), own / entry, flags=kernel.BIND)
    if (layers := clone.layers()) is not None:
        view = own / clone.LAYERS
        kernel.mount(str(layers), view, flags=kernel.BIND)
        kernel.mount("none", view, flags=kernel.BIND | kernel.REMOUNT | kernel.READ_ONLY)
    kernel.mount(str(own), clone.LIBRARY, flags=kernel.BIND | kernel.REC)


def _wait(keeper: socket.socket) -> None:
    """Reap orphans until the keeper's end is closed."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poller = select.poll()
    poller.register(keeper.fileno(), select.POLLIN)
    poller.register(woken, select.POLLIN)
    while True:
        for fd, _ in poller.poll():
            if fd == keeper.fileno():
                return
            os.read(fd, 4096)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass


def start(name: str) -> tuple[int, socket.socket]:
    """Fork the first process; return its pid, and a socket that it closes when it ends.

    Its caller has unshared the pid namespace.
    """
    mine, its = socket.socketpair()
    pid = os.fork()
    if pid:
        its.close()
        return pid, mine
    status = 1
    try:
        _close_all_but(its.fileno())
        status = live(name, its)
    finally:
        sys.stderr.flush()
        os._exit(status)


def _close_all_but(kept: int) -> None:
    """Close what was the keeper's, above all the lane's lock and the other end of the pair."""
    os.closerange(sys.stderr.fileno() + 1, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
