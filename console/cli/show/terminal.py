"""The local terminal: its size, a line of progress, and raw input that is always restored."""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from console.cli.show import output as out
from console.cli.show import streams
from console.cli.show.text import plain

TENTHS = 10
MOST_LINES = 40
"""Most lines of progress where stderr is not a terminal; later ones are left out."""
_CLEAR = "\r\x1b[K"
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
def resized(redraw: Callable[[], None]) -> Iterator[None]:
    """Call ``redraw``, in the main thread, whenever the size of the terminal changes."""
    before = signal.signal(signal.SIGWINCH, lambda *_: redraw())
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


class ProgressLine:
    """Shows the latest text on stderr; a context manager, which leaves the terminal's line empty.

    Without a terminal, or where it is dumb, it prints a text that differs from the one before
    once a tenth of the whole, and MOST_LINES at most.
    """

    def __init__(self) -> None:
        self._in_place = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._told: tuple[str, int | None] = ("", None)
        self._lines = 0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._in_place and self._told[0]:
            streams.message(_CLEAR)

    def show(self, text: str, share: float | None = None) -> None:
        """Show ``text``; ``share`` is the part that is done, None if it is not known."""
        tenth = None if share is None else int(TENTHS * share)
        before, self._told = self._told, (text, tenth)
        if text == before[0] or not text:
            return
        if self._in_place:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns
            # A line as wide as the terminal would wrap, and could not be rewritten.
            streams.message(_CLEAR + plain(text)[: max(columns - 1, 1)])
        elif (tenth is None or tenth != before[1]) and self._lines < MOST_LINES:
            self._lines += 1
            out.message(text)
