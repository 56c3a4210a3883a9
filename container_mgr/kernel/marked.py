"""Finds and signals a command's processes in a container by a mark in their environment.

The engine ends a command neither when its caller leaves nor on request. A process inherits the mark
from its parent, whatever session it joins; only one that clears its environment loses it, and that
one ends with its container.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def send(container_id: str, mark: str, signum: int, proc: Path = Path("/proc")) -> int:
    """Signal all processes of a container whose environment contains ``mark``; return how many.

    ``mark`` is ``NAME=VALUE``, or ``NAME=`` for any value. Blocks: reads all processes. OSError.
    """
    sent = 0
    for entry in proc.iterdir():
        if entry.name.isdecimal() and _signalled(entry, container_id, mark.encode(), signum):
            sent += 1
    return sent


def _signalled(entry: Path, container_id: str, mark: bytes, signum: int) -> bool:
    # The pidfd comes first: what is read afterwards may be another process's, but that one gets
    # no signal.
    try:
        pidfd = os.pidfd_open(int(entry.name))
    except OSError:
        return False
    try:
        with suppress(OSError):
            if container_id in (entry / "cgroup").read_text(encoding="utf-8") and any(
                pair.startswith(mark) if mark.endswith(b"=") else pair == mark
                for pair in (entry / "environ").read_bytes().split(b"\0")
            ):
                signal.pidfd_send_signal(pidfd, signum)
                return True
        return False
    finally:
        os.close(pidfd)
