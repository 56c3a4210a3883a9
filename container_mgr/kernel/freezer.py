"""Freezes one container with the kernel's freezer, which stops all of its processes at once.

cgroup v1: ``freezer.state`` accepts ``FROZEN`` and ``THAWED`` and reads ``FREEZING`` until the last
task has stopped (Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst). cgroup v2:
``cgroup.freeze`` accepts 1 and 0, and ``cgroup.events`` has ``frozen 1`` when all have stopped
(admin-guide/cgroup-v2.rst). Both also apply to all cgroups below: a frozen parent keeps its
children frozen.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from base import clock
from container_mgr.kernel.cgroup import FREEZER, UNIFIED, Groups

_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.02


class FreezerState(StrEnum):
    """The state of a freezer."""

    THAWED = "THAWED"
    FREEZING = "FREEZING"
    FROZEN = "FROZEN"


@dataclass(slots=True, frozen=True)
class Freezer:
    """The freezer of one cgroup. Methods access one or two small files and never wait."""

    version: int
    group: Path

    def request(self, *, frozen: bool) -> None:
        """Make the kernel freeze or thaw; :meth:`state` shows when that is done. OSError."""
        if self.version == 1:
            self._write("freezer.state", FreezerState.FROZEN if frozen else FreezerState.THAWED)
        else:
            self._write("cgroup.freeze", "1" if frozen else "0")

    def state(self) -> FreezerState:
        """Return the current state. OSError when the cgroup is gone."""
        if self.version == 1:
            return FreezerState((self.group / "freezer.state").read_text(encoding="ascii").strip())
        if "frozen 1" in (self.group / "cgroup.events").read_text(encoding="ascii").splitlines():
            return FreezerState.FROZEN
        asked = (self.group / "cgroup.freeze").read_text(encoding="ascii").strip() == "1"
        return FreezerState.FREEZING if asked else FreezerState.THAWED

    def _write(self, name: str, word: str) -> None:
        # No O_CREAT: when the kernel has no such file, do not create one.
        file = os.open(self.group / name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, word.encode())
        finally:
            os.close(file)


def find(container_id: str, pid: int, proc: Path = Path("/proc")) -> Freezer:
    """Return the freezer of a container, from its first process and its id.

    It is the cgroup on the process's path whose name contains the container's id, so a process
    that got the same number later has none. OSError when the process is gone, LookupError without
    such a cgroup in a mounted hierarchy.
    """
    groups = Groups(pid, proc)
    version, controller = (1, FREEZER) if groups.has(FREEZER) else (2, UNIFIED)
    path = PurePosixPath(groups.path(controller))
    down = (*reversed(path.parents), path)
    own = next((p for p in down if container_id and container_id in p.name), None)
    if own is None:
        raise LookupError(f"cgroup {path} of process {pid} is not container {container_id}'s")
    freezer = Freezer(version, groups.directory(controller, str(own)))
    name = "freezer.state" if version == 1 else "cgroup.freeze"
    if not os.access(freezer.group / name, os.W_OK):
        raise LookupError(f"{freezer.group / name} cannot be written")
    return freezer


async def settle(
    freezers: Sequence[Freezer], *, frozen: bool, limit_s: float
) -> dict[Freezer, FreezerState | None]:
    """Wait until all are frozen (or thawed), ``limit_s`` at most; return those that are not.

    Each comes with its state, or None for a container that has ended meanwhile. A freezer that
    is still FREEZING is asked again, as runc does: that reaches processes created since.
    """
    wanted = FreezerState.FROZEN if frozen else FreezerState.THAWED
    end = clock.monotonic() + limit_s
    pause_s = _FIRST_PAUSE_S
    late: dict[Freezer, FreezerState | None] = {}
    waiting = list(freezers)
    while True:
        still = []
        for one in waiting:
            seen = read_state(one)
            if seen is None:
                late[one] = None
            elif seen is not wanted:
                still.append((one, seen))
        if not still:
            return late
        if clock.monotonic() >= end:
            return late | dict(still)
        await asyncio.sleep(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
        waiting = [one for one, _ in still]
        for one in waiting:
            with suppress(OSError):  # it stays in its state, which is returned
                request(one, frozen=frozen)


def read_state(freezer: Freezer) -> FreezerState | None:
    """Return the state; None when the container has ended."""
    try:
        return freezer.state()
    except OSError:
        return None


def request(freezer: Freezer, *, frozen: bool) -> bool:
    """Freeze or thaw; False when the container has ended. OSError when the kernel refuses."""
    try:
        freezer.request(frozen=frozen)
    except OSError:
        if freezer.group.exists():
            raise
        return False
    return True
