"""A process of its own for long computations, so that they never hold the caller's interpreter.

A thread shares the interpreter's lock with the event loop, and one call of a library can keep it
for a tenth of a second. A process can also be ended, whatever it does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TypeVar, cast

from base.frames import FrameError, body_of, packed, unpacked

Result = TypeVar("Result")
Clock = Callable[[], float]

_KEPT = ("LANG", "LC_ALL", "PATH", "PYTHONHASHSEED")
"""What the process gets of the environment; passwords may be in the rest."""


class WorkerError(Exception):
    """The process ended before it answered, or its program failed."""


class Worker:
    """One process that performs tasks, started with the first one and kept for the next.

    It is spawned, not forked: it has its two pipes and nothing else that is open here. ``perform``
    blocks and is for one thread at a time, the other methods are for any thread.
    """

    def __init__(self, package: str) -> None:
        """``package`` has the classes of the tasks and of their results (``base.frames``)."""
        self._package = package
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process that is kept; None without one."""
        process = self._process
        return None if process is None else process.pid

    def perform(self, task: Callable[[Clock], Result], wanted: Callable[[], object]) -> Result:
        """Call ``task`` in the process with its monotonic clock; return the result.

        ``wanted`` raises an error of the caller's when the result is no longer wanted, after
        ``stop``. Errors of the package are raised as in the process. WorkerError when the process
        ends meanwhile; the next call starts another.
        """
        try:
            frame = packed(task)
            process = self._ready()
        except (FrameError, OSError) as error:
            raise WorkerError(f"its process got no task: {error}") from error
        try:
            wanted()
            kind, found = self._asked(process, frame)
        except FrameError as error:
            self._end(process)
            raise WorkerError(f"its process gave a wrong answer: {error}") from error
        except (OSError, EOFError):
            self._end(process)
            wanted()
            raise WorkerError(f"its process {self._fate(process.returncode)}") from None
        finally:
            if self._process is not process:  # stopped meanwhile
                self._end(process)
        if isinstance(found, ValueError):
            raise found
        if kind != "value":
            raise WorkerError(f"its process failed: {found}")
        return cast(Result, found)

    def stop(self) -> None:
        """End the process at once, whatever it does. Does not wait."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process and start no other; return when it is gone."""
        self._closed = True
        process = self._process
        if process is not None:
            self._end(process)

    def _ready(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is not None and process.poll() is not None:
            self._end(process)
            process = None
        if process is None:
            process = self._process = self._started()
        if self._closed:
            self._end(process)
            raise WorkerError("it is closed")
        return process

    def _started(self) -> subprocess.Popen[bytes]:
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "base.worker", self._package, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            start_new_session=True,  # a Ctrl-C at the terminal is for the parent
        )

    def _asked(self, process: subprocess.Popen[bytes], frame: bytes) -> tuple[str, object]:
        if process.stdin is None or process.stdout is None:
            raise EOFError
        process.stdin.write(frame)
        process.stdin.flush()
        kind, found = unpacked(body_of(process.stdout), self._package)
        return kind, found

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if self._process is process:
            self._process = None
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _fate(self, status: int) -> str:
        if self._closed:
            return "was ended with the program that needs it"
        if status < 0:
            return f"was killed ({signal.Signals(-status).name})"
        return f"ended with status {status}"
