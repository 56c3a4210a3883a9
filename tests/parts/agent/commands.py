"""Stands for the cgroups of commands where a test is not root: a group is a session."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from container_mgr.kernel.commands import CommandGroup, CommandGroups
from container_mgr.kernel.freezer import Freezer
from container_mgr.values import Container


@dataclass(frozen=True)
class FakeGroup(CommandGroup):
    """The processes of the sessions that were put into it. ``stuck`` ones do not end."""

    freezer: Freezer = field(default_factory=lambda: Freezer(2, Path("/nowhere")))
    sessions: list[int] = field(default_factory=list)
    stuck: list[int] = field(default_factory=list)

    def add(self, pid: int) -> None:
        self.sessions.append(pid)

    def end(self, signum: signal.Signals) -> bool:
        numbers = [int(e.name) for e in Path("/proc").iterdir() if e.name.isdecimal()]
        found = [pid for pid in numbers if self.has(pid)]
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signum)
        return not found and not self.stuck

    def has(self, pid: int) -> bool:
        with suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            state, _, _, session = stat.rpartition(")")[2].split()[:4]
            return int(session) in self.sessions and state not in "ZX"
        return False


class FakeCommandGroups(CommandGroups):
    """Makes them, and keeps them by container."""

    def __init__(self, proc: Path) -> None:
        super().__init__(proc)
        self.made: defaultdict[str, list[FakeGroup]] = defaultdict(list)
        self.stuck: list[int] = []
        """Not empty: no group becomes empty, as with a process that waits in the kernel."""

    def make(self, container: Container, token: str) -> FakeGroup:
        group = FakeGroup(stuck=self.stuck)
        self.made[container.id].append(group)
        return group

    def left(self, container: Container) -> list[CommandGroup]:
        return list(self.made[container.id])
