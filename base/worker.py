"""The program of a worker's process: ``python -m base.worker PACKAGE PARENT``.

It reads one task after the other from its input, calls it with a monotonic clock, and writes the
answer: ``("value", …)``, ``("error", …)`` for an error of the package, or ``("broken", text)``. It
ends with its input, and with the process PARENT, even in the middle of a task.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path
from typing import BinaryIO

from base import clock
from base.frames import FrameError, belongs, body_of, packed, unpacked

NICENESS = 10
"""The work yields to the process for which it is done."""

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Perform tasks until the input ends."""
    package, parent = sys.argv[1], int(sys.argv[2])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # it ended before it could be watched
    _yield_to_others()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not mix with answers
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            _answer(sys.stdin.buffer, answers, package)


def _yield_to_others() -> None:
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # memory that runs out ends this process, not its parent
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _answer(tasks: BinaryIO, answers: BinaryIO, package: str) -> None:
    body = body_of(tasks)
    try:
        frame = packed(("value", unpacked(body, package)(clock.monotonic)))
    except Exception as error:  # the caller gets it
        if isinstance(error, ValueError) and belongs(type(error), package):
            frame = packed(("error", error))
        else:
            text = (
                str(error) if isinstance(error, FrameError) else f"{type(error).__name__}: {error}"
            )
            frame = packed(("broken", text))
    answers.write(frame)
    answers.flush()


if __name__ == "__main__":
    main()
