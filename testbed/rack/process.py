"""Starts a rack's processes and ends them by pid and start time, never by name."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testbed.rack import procfs
from testbed.rack.errors import RackError

LOG_TAIL_LINES = 8
POLL_S = 0.05
KILL_S = 30.0
"""Time limit for the end of killed processes, on a machine that swaps or is stalled."""


@dataclass(slots=True, frozen=True)
class Process:
    """A started process: ``ticks`` distinguishes it from a later one with the same pid."""

    name: str
    pid: int
    ticks: int
    log: str
    argv: tuple[str, ...]
    started_at: float

    def alive(self) -> bool:
        """Whether this process still runs."""
        return procfs.start_ticks(self.pid) == self.ticks


@dataclass(slots=True, frozen=True)
class ProgramSpec:
    """A program to start. ``netns`` is its network namespace, None for the machine's."""

    name: str
    argv: tuple[str, ...]
    netns: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def marked(run_dir: Path) -> Iterator[None]:
    """Mark all processes started inside with the rack's marker, including tools and builders.

    They survive when this process is killed; the marker makes it possible to find and end them.
    """
    before = os.environ.get(procfs.MARKER)
    os.environ[procfs.MARKER] = str(run_dir)
    try:
        yield
    finally:
        if before is None:
            del os.environ[procfs.MARKER]
        else:
            os.environ[procfs.MARKER] = before


def spawn(program: ProgramSpec, log_dir: Path, marker: str) -> Process:
    """Start ``program`` in its own session, with its output in ``log_dir/<name>.log``.

    Raises RackError(unavailable) when the program is not installed, RackError(failed) when it
    ends immediately.
    """
    argv = list(program.argv)
    if shutil.which(argv[0]) is None:
        raise RackError(
            "unavailable",
            f"{argv[0]} is not installed",
            object=f"process/{program.name}",
            hint="run `make setup`",
        )
    if program.netns is not None:
        argv = ["ip", "netns", "exec", program.netns, *argv]
    log = log_dir / f"{program.name}.log"
    write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    pid = os.posix_spawnp(
        argv[0],
        argv,
        {**os.environ, **program.env, procfs.MARKER: marker},
        setsid=True,
        setsigmask=[],
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), write, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )
    ticks = procfs.start_ticks(pid)
    if ticks is None:
        _reap(pid)
        raise died(program.name, log)
    return Process(program.name, pid, ticks, str(log), tuple(argv), time.time())


def wait_ready(process: Process, ready: Callable[[], bool], *, timeout_s: float) -> None:
    """Wait for ``ready()``. Raises RackError with the log's last lines on death or timeout."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if not process.alive():
            _reap(process.pid)
            raise died(process.name, Path(process.log))
        if time.monotonic() > deadline:
            raise RackError(
                "timeout",
                f"{process.name} was not ready after {timeout_s:g} s{quote(Path(process.log))}",
                object=f"process/{process.name}",
                hint=f"see {process.log}",
            )
        time.sleep(POLL_S)


def accepts(path: Path) -> bool:
    """Whether a local socket accepts connections; its file exists a moment before that."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        return caller.connect_ex(str(path)) == 0


def died(name: str, log: Path) -> RackError:
    """Return the error for a process that ended when it should run."""
    return RackError(
        "failed",
        f"{name} ended immediately after its start{quote(log)}",
        object=f"process/{name}",
        hint=f"see {log}",
    )


def quote(log: Path, lines: int = LOG_TAIL_LINES) -> str:
    """Return the last lines of a log for an error message, or nothing when it is empty."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    tail = [line for line in text.splitlines() if line.strip()][-lines:]
    return "".join([":", *(f"\n  | {line[:300]}" for line in tail)]) if tail else ""


def stop(processes: Iterable[Process], *, grace_s: float) -> None:
    """End processes in the given order, one after the other: SIGTERM, then SIGKILL."""
    for process in processes:
        end_all([(process.pid, process.ticks)], grace_s=grace_s)


def end_all(targets: Sequence[tuple[int, int]], *, grace_s: float) -> None:
    """End all (pid, start ticks) at once: SIGTERM, ``grace_s`` to end, SIGKILL, until gone.

    Signals use pidfds (pidfd_open(2)), opened before the start time is compared, so that a
    reused pid never gets a signal.
    """
    handles: dict[int, int] = {}
    try:
        for pid, ticks in targets:
            try:
                handle = os.pidfd_open(pid)
            except OSError:
                continue
            if procfs.start_ticks(pid) != ticks:
                os.close(handle)
                continue
            handles[handle] = pid
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_S)):
            for handle in handles:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
            _await_exit(handles, wait_s)
    finally:
        for handle in handles:
            os.close(handle)


def kill_all(targets: Iterable[tuple[int, int]]) -> None:
    """End all (pid, start ticks) at once with SIGKILL, without waiting until they are gone."""
    for pid, ticks in targets:
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            if procfs.start_ticks(pid) == ticks:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def _await_exit(handles: dict[int, int], wait_s: float) -> None:
    """Drop from ``handles`` the processes that end within ``wait_s``; reap own children."""
    poller = select.poll()
    for handle in handles:
        poller.register(handle, select.POLLIN)
    deadline = time.monotonic() + wait_s
    while handles and (left := deadline - time.monotonic()) > 0:
        for handle, _ in poller.poll(left * 1000):
            poller.unregister(handle)
            _reap(handles.pop(handle))
            os.close(handle)


def _reap(pid: int) -> None:
    """Collect the exit status if ``pid`` is a child of this process."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
