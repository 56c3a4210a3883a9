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
COMMAND = "import sys; from console.cli.main import main; sys.exit(main())"


def run(
    *arguments: str, rows: int = 24, columns: int = 80, environment: Mapping[str, str]
) -> tuple[int, str]:
    """Run ``lightloom`` with all streams at a terminal; return its exit code and its output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TERM": "xterm-256color", **environment},
    )
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # a terminal that nobody has open any more
        while data := os.read(ours, 65536):
            said += data
    os.close(ours)
    return process.wait(timeout=60), said.decode()


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
