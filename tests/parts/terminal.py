"""A program in a pseudo-terminal, and what its user sees there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

_PIECE = re.compile(r"\x1b\[(?P<args>[?0-9;]*)(?P<verb>[A-Za-z])|\x1b[()].|\x1b.|(?P<char>.)", re.S)
_LEAVE_SCREEN = "\x1b[?1049l"
_OF_TERMINALS = frozenset({"COLUMNS", "LINES", "NO_COLOR"})
COMMAND = (
    "import signal, sys; from console.cli.main import main; "
    # Who runs the tests in the background has SIGINT ignored, and programs inherit that.
    "signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(main())"
)


class Program:
    """``lightloom`` with all streams at a terminal of its own."""

    def __init__(
        self, *arguments: str, rows: int = 24, columns: int = 80, environment: Mapping[str, str]
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        # The terminal is this one, whatever that of the tests is.
        inherited = {k: v for k, v in os.environ.items() if k not in _OF_TERMINALS}
        self._process = subprocess.Popen(
            ["/usr/bin/setsid", "--ctty", "--wait", sys.executable, "-c", COMMAND, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=Path(__file__).parents[2],
            env={**inherited, "TERM": "xterm-256color", **environment},
        )
        os.close(theirs)
        self.said = ""

    def until(self, text: str) -> None:
        """Read until the program has said ``text``."""
        while text not in self.said:
            assert self._read(), f"{text!r} was not said: {self.said!r}"

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._ours, keys.encode())

    def end(self) -> int:
        """Read until the program ends; return its exit code."""
        while self._read():
            pass
        os.close(self._ours)
        return self._process.wait(timeout=60)

    def _read(self) -> bool:
        with contextlib.suppress(OSError):  # a terminal that nobody has open any more
            data = os.read(self._ours, 65536)
            self.said += data.decode(errors="replace")
            return bool(data)
        return False


def last_screen(said: str, *, rows: int = 24, columns: int = 80) -> list[str]:
    """Return the lines of the screen as the program left it, before it restored the user's.

    Knows what rich writes: cursor moves, clearing, wrapping at the last column, scrolling.
    """
    shown = [[" "] * columns for _ in range(rows)]
    row = column = 0
    for piece in _PIECE.finditer(said.partition(_LEAVE_SCREEN)[0]):
        char, verb = piece["char"], piece["verb"]
        if verb == "H":
            row, column = (max(int(n or 1) - 1, 0) for n in (piece["args"] + ";").split(";")[:2])
        elif verb == "J":
            shown = [[" "] * columns for _ in range(rows)]
        elif char == "\r":
            column = 0
        elif char == "\n" or (char and column >= columns):
            row += 1
            if row == rows:
                shown, row = [*shown[1:], [" "] * columns], rows - 1
            column = 0 if char != "\n" else column
        if char and char not in "\r\n":
            shown[row][column] = char
            column += 1
    return ["".join(line).rstrip() for line in shown]
