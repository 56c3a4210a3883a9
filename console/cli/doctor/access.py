"""Reads a machine for ``doctor``: files below a root, programs, the engine. All of it is bounded.

A test plants a tree as the root and gives functions of its own for the rest.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from base.figures import figure

_T = TypeVar("_T")

TIMEOUT_S = 10.0
"""For a program, and for an answer of the engine."""
CONNECT_TIMEOUT_S = 3.0
MAX_BYTES = 1 << 22
"""Of a file, of a program's output, and of an answer."""
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_FSYNCS = 8


def which(program: str) -> str | None:
    """Return where a program is, also one for administrators; None when it is absent."""
    return shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", ""), *_SBIN)))


def run(command: Sequence[str]) -> str | None:
    """Return a program's output; None when it is absent, fails, or is too slow or too long."""
    program = which(command[0])
    if program is None:
        return None
    try:
        process = subprocess.Popen(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError:
        return None
    timer = threading.Timer(TIMEOUT_S, process.kill)
    timer.start()
    try:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        with process.stdout as pipe:
            output = pipe.read(MAX_BYTES + 1)
        if len(output) > MAX_BYTES:
            process.kill()
        ended = process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return None
    finally:
        timer.cancel()
    return None if ended else output.decode(errors="replace")


def ask_engine(place: Path, path: str) -> bytes:
    """Return the engine's answer to ``GET path``. OSError without one, or if it is an error."""
    connection = _UnixConnection(str(place))
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read(MAX_BYTES + 1)
    except http.client.HTTPException as error:
        raise OSError(f"not HTTP: {error!r}") from error
    finally:
        connection.close()
    if answer.status != http.client.OK or len(body) > MAX_BYTES:
        raise OSError(f"HTTP {answer.status}, {len(body)} bytes")
    return body


def connect(host: str, port: int) -> None:
    """Connect over TCP, and close. OSError."""
    socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()


def free_bytes(place: Path) -> int:
    """Return the bytes that a process without privileges may still write there. OSError."""
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def fsync_s(place: Path) -> float:
    """Return the median time of an fsync in a folder. OSError. The file it needs has no name."""
    descriptor = os.open(place, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        times = []
        for _ in range(_FSYNCS):
            os.write(descriptor, bytes(4096))
            begun = time.monotonic()
            os.fsync(descriptor)
            times.append(time.monotonic() - begun)
    finally:
        os.close(descriptor)
    return sorted(times)[_FSYNCS // 2]


def in_time(calls: Sequence[Callable[[], _T]], timeout_s: float) -> list[_T | Exception]:
    """Make calls beside each other; return the result of each, or its error.

    A call that is too slow has TimeoutError, and its thread does not keep the process.
    """
    results: list[_T | Exception] = [TimeoutError(f"no answer within {figure(timeout_s)} s")] * len(
        calls
    )

    def make(index: int) -> None:
        try:
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=make, args=(i,), daemon=True) for i in range(len(calls))]
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return list(results)


@dataclass(slots=True, frozen=True)
class MachineAccess:
    """The ways to read a machine; ``root`` is the folder of its files."""

    root: Path = Path("/")
    run: Callable[[Sequence[str]], str | None] = run
    ask_engine: Callable[[Path, str], bytes] = ask_engine
    connect: Callable[[str, int], None] = connect
    free_bytes: Callable[[Path], int] = free_bytes
    fsync_s: Callable[[Path], float] = fsync_s
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def at(self, path: str | Path) -> Path:
        """Return where a path of the machine is."""
        return self.root / str(path).lstrip("/")

    def text(self, path: str | Path) -> str:
        """Return a file's stripped text, at most ``MAX_BYTES``; empty when it cannot be read."""
        with suppress(OSError):
            descriptor = os.open(self.at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return _read(descriptor).decode(errors="replace").strip()
            finally:
                os.close(descriptor)
        return ""

    def names(self, path: str | Path) -> list[str]:
        """Return the sorted names in a folder; none when it cannot be read."""
        with suppress(OSError):
            return sorted(entry.name for entry in self.at(path).iterdir())
        return []

    def link(self, path: str | Path) -> str:
        """Return the last name of what a link leads to; empty when it leads nowhere."""
        with suppress(OSError):
            return self.at(path).resolve(strict=True).name
        return ""

    def processes(self) -> dict[int, str]:
        """Return the short names of all processes."""
        numbers = [int(name) for name in self.names("proc") if name.isdecimal()]
        return {number: self.text(f"proc/{number}/comm") for number in numbers}

    def json(self, command: Sequence[str]) -> Any:
        """Return the document that a program prints; None without one."""
        with suppress(ValueError):
            return json.loads(self.run(command) or "")
        return None

    def engine(self, place: Path, path: str) -> Mapping[str, Any]:
        """Return an object of the engine at a socket. OSError."""
        try:
            document = json.loads(self.ask_engine(place, path))
        except ValueError as error:
            raise OSError(f"{path} answers what is not JSON") from error
        if not isinstance(document, dict):
            raise OSError(f"{path} answers what is not an object")
        return document


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, place: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._place = place

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._place)


def _read(descriptor: int) -> bytes:
    data = b""
    while len(data) < MAX_BYTES and (more := os.read(descriptor, MAX_BYTES - len(data))):
        data += more
    return data
