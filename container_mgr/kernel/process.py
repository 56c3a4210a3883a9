"""Opens a container's first process, and no other process that got its number later.

The kernel reuses process numbers, soon where there are few, and an engine that hung or was
restarted may report a number whose process ended long ago.
"""

from __future__ import annotations

import os
import select
from pathlib import Path

from container_mgr.values import Container


def open_first(container: Container, proc: Path = Path("/proc")) -> int:
    """Return a pidfd of the container's first process. ProcessLookupError when it has ended.

    The name of the process's cgroup contains the container's id. Another process's does not; on
    cgroup v1 an exiting process's does not either. OSError when the kernel gives no pidfd.
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
        raise ProcessLookupError(f"{container.pid} is not a process of {container.key.container}")
    return pidfd


def is_ending(container: Container, proc: Path = Path("/proc")) -> bool:
    """Return whether the container's first process has ended or is ending.

    An exiting process loses its namespaces first. Its end becomes visible only when all other
    processes of the container are gone and all memory is freed, which can take long.
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
