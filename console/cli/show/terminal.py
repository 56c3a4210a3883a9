"""The local terminal: its size, and raw input that is restored in every case."""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)


def size() -> dict[str, int]:
    """Return the size of the terminal that stdout is, in characters."""
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    return {"rows": max(1, rows), "columns": max(1, columns)}


@contextmanager
def raw() -> Iterator[None]:
    """Pass on every key of stdin unchanged, Ctrl-C included; restore the terminal at the end."""
    before = termios.tcgetattr(sys.stdin)

    def end(signum: int, _: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    handlers = {signum: signal.signal(signum, end) for signum in _ENDING}
    try:
        tty.setraw(sys.stdin, termios.TCSADRAIN)  # what was typed before is kept
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


@contextmanager
def resized(tell: Callable[[], None]) -> Iterator[None]:
    """Call ``tell``, in the main thread, whenever the size of the terminal changes."""
    before = signal.signal(signal.SIGWINCH, lambda *_: tell())
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
