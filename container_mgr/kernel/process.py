"""A container's first process, told from a stranger that was given its number later.

Numbers are handed out again, soon where there are few of them, and an engine that hung or was
restarted may go on naming one whose process ended long ago.
"""

from __future__ import annotations

import os
import select
from pathlib import Path

from container_mgr.values import Container


def open_first(container: Container, proc: Path = Path("/proc")) -> int:
    """Return a pidfd of the container's first process. ProcessLookupError when it has ended.

    The cgroup of the process carries its container's id: a stranger's does not, and no more does
    on cgroup v1 that of a process on its way out. OSError when the kernel gives no pidfd.
    """
    if not container.id or container.pid <= 0:
        raise ProcessLookupError(f"{container.key.container} has no first process")
    pidfd = os.pidfd_open(container.pid)
    try:
        groups = (proc / str(container.pid) / "cgroup").read_text(encoding="utf-8")
    except OSError:
        groups = ""
    if container.id not in groups:
        os.close(pidfd)
        raise ProcessLookupError(f"{container.pid} is no process of {container.key.container}")
    return pidfd


def is_ending(container: Container, proc: Path = Path("/proc")) -> bool:
    """Say whether the container's first process has ended or is about to.

    It loses its namespaces first; until its end can be seen, all others of the container must be
    gone and all memory freed, which on a busy machine takes long.
    """
    try:
        pidfd = open_first(container, proc)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(0)) or not (proc / str(container.pid) / "ns" / "net").exists()
    finally:
        os.close(pidfd)
