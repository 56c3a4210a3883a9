"""Finds out which network namespaces the processes of cgroups use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

MAX_PROCESSES = 4096
"""Of all cgroups together. With more, nothing is said about them."""
_MAX_GROUPS = 4096


def one_per_namespace(groups: Sequence[Path], proc: Path = Path("/proc")) -> list[int] | None:
    """Return one process of each network namespace that the processes of the cgroups use.

    None when that is not known, or when one of them shares the namespace of the agent or of the
    server's first process: that has sockets of all others, too. The processes are frozen.
    """
    shared = {_namespace(proc / "self"), _namespace(proc / "1")}
    found: dict[str, int] = {}
    pids = _processes(groups)
    if pids is None:
        return None
    for pid in pids:
        namespace = _namespace(proc / str(pid))
        if namespace is None:  # it was killed
            continue
        if namespace in shared:
            return None
        found.setdefault(namespace, pid)
    return list(found.values())


def has_rdma(sysfs: Path = Path("/sys")) -> bool:
    """Whether the server has an adapter for RDMA: a process can use it in any namespace."""
    try:
        return any((sysfs / "class" / "infiniband").iterdir())
    except OSError:
        return False


def _processes(groups: Sequence[Path]) -> list[int] | None:
    """Return the processes of the cgroups and of those below; None when there are too many."""
    found: list[int] = []
    looked = 0
    for group in groups:
        for path, _, _ in os.walk(group):
            looked += 1
            try:
                words = Path(path, "cgroup.procs").read_text(encoding="ascii").split()
            except OSError:  # it has ended
                continue
            found += [int(word) for word in words]
            if looked > _MAX_GROUPS or len(found) > MAX_PROCESSES:
                return None
    return found


def _namespace(process: Path) -> str | None:
    try:
        return str((process / "ns" / "net").readlink())
    except OSError:
        return None
