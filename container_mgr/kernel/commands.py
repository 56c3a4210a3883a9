"""Keeps all processes of one command in a cgroup of their own, below their container's.

The engine ends a command neither when its caller leaves nor on request. A process cannot leave its
cgroup: not by another session, parent or environment, nor by a name. So that none runs outside it,
a command starts as a shell that stops itself (:func:`waiting`) and goes on once it is in there.

On cgroup v1 the cgroup is in the hierarchy of the freezer, on v2 in the only one.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from container_mgr.kernel import freezer
from container_mgr.kernel.freezer import Freezer
from container_mgr.kernel.process import open_first
from container_mgr.values import Container

PREFIX = "ll-exec-"
"""Prefix of the names of commands' cgroups."""
_WAIT = (
    "kill -STOP $$;"
    ' command -v "$1" >/dev/null 2>&1 || { echo "$1: cannot be run: not found"; exit 126; };'
    ' exec "$@"'
)


def waiting(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command that stops itself, and becomes ``command`` when it is continued."""
    return ("/bin/sh", "-c", _WAIT, "lightloom", *command)


@dataclass(slots=True, frozen=True)
class CommandGroup:
    """The cgroup of one command."""

    freezer: Freezer
    proc: Path = Path("/proc")

    def end(self, signum: signal.Signals) -> bool:
        """Signal all of its processes; return whether none is left. OSError.

        SIGKILL also reaches those that they start meanwhile.
        """
        try:
            self.freezer.group.rmdir()  # the kernel refuses while there is a process
        except FileNotFoundError:
            return True
        except OSError:
            if signum is signal.SIGKILL:
                self._kill()
            else:
                self._send(signum)
            return False
        return True

    def add(self, pid: int) -> None:
        """Move a process into the cgroup; what it starts is there as well. OSError."""
        self._write("cgroup.procs", str(pid))

    def _kill(self) -> None:
        if self.freezer.version == 2:
            with suppress(FileNotFoundError):  # before Linux 5.14
                self._write("cgroup.kill", "1")
                return
        # Frozen processes start no others. On cgroup v1 they die when they are thawed.
        freezer.request(self.freezer, frozen=True)
        try:
            self._send(signal.SIGKILL)
        finally:
            freezer.request(self.freezer, frozen=False)

    def _send(self, signum: signal.Signals) -> None:
        group = self.freezer.group
        try:
            words = (group / "cgroup.procs").read_text(encoding="ascii").split()
        except FileNotFoundError:
            return
        for word in words:
            # The pidfd comes first: what is read afterwards may be another process's, but that
            # one gets no signal.
            with suppress(OSError):
                pidfd = os.pidfd_open(int(word))
                try:
                    entry = self.proc / word / "cgroup"
                    if group.name in entry.read_text(encoding="utf-8"):
                        signal.pidfd_send_signal(pidfd, signum)
                finally:
                    os.close(pidfd)

    def _write(self, name: str, word: str) -> None:
        file = os.open(self.freezer.group / name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, word.encode())
        finally:
            os.close(file)


class CommandGroups:
    """Makes and finds the cgroups of commands. All methods access a few small files."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.proc = proc

    def make(self, container: Container, token: str) -> CommandGroup:
        """Make an empty cgroup. OSError, and LookupError where cgroups cannot be written."""
        above = freezer.find(container.id, container.pid, self.proc)
        group = above.group / f"{PREFIX}{token}"
        group.mkdir()
        return CommandGroup(replace(above, group=group), self.proc)

    def begin(self, container: Container, token: str, pid: int) -> CommandGroup | None:
        """Release the command whose shell is ``pid``; None while the shell does not wait yet.

        Raises ProcessLookupError when it has ended, OSError, LookupError.
        """
        pidfd = open_first(replace(container, pid=pid), self.proc)
        try:
            if not _is_stopped(pid, self.proc):
                return None
            group = self.make(container, token)
            try:
                group.add(pid)
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            except OSError:
                group.end(signal.SIGKILL)
                raise
            return group
        finally:
            os.close(pidfd)

    def refuse(self, container: Container, pid: int) -> None:
        """End a command that has not begun. OSError."""
        with suppress(ProcessLookupError):
            pidfd = open_first(replace(container, pid=pid), self.proc)
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)

    def left(self, container: Container) -> list[CommandGroup]:
        """Return the cgroups of all commands in a running container. OSError, LookupError."""
        above = freezer.find(container.id, container.pid, self.proc)
        return [
            CommandGroup(replace(above, group=path), self.proc)
            for path in above.group.iterdir()
            if path.name.startswith(PREFIX) and path.is_dir()
        ]


def _is_stopped(pid: int, proc: Path) -> bool:
    """Return whether a process is stopped by a signal (proc_pid_stat(5), state T)."""
    state = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    return state[:1] == [b"T"]
