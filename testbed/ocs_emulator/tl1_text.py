"""Parses TL1 commands and frames responses. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from base import clock
from testbed.ocs_emulator.faults import Firmware

_COMMAND_LIMIT = 65536


@dataclass(slots=True, frozen=True)
class Tl1Request:
    """A received command; ``payload`` are the blocks after the general block."""

    verb: str
    aid: str
    ctag: str
    payload: tuple[str, ...]

    def block(self, index: int) -> str:
        """Return a payload block, or an empty string when absent."""
        return self.payload[index] if index < len(self.payload) else ""


@dataclass(slots=True, frozen=True)
class Tl1Answer:
    """A dialect's response; a ``code`` makes it a refusal."""

    rows: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()
    code: str = ""
    text: tuple[str, ...] = ()
    """Lines that are not rows."""


def refusal(code: str, text: str) -> Tl1Answer:
    """Return a DENY response."""
    return Tl1Answer(code=code, comments=(text,))


class Tl1Dialect(Protocol):
    """A vendor's verbs."""

    sid: str
    prompt: str
    login_comment: str
    greeting: bytes
    """Data sent right after the connection is made."""
    rows_per_block: int
    """Longer responses continue in further blocks; 0 means never."""
    reports: bool
    """Whether the switch sends autonomous messages."""

    def changes(self, request: Tl1Request) -> bool:
        """Whether a command changes circuits."""

    async def answer(self, request: Tl1Request, user: str) -> Tl1Answer:
        """Execute a command of a logged-in user."""


class CommandScanner:
    """Splits bytes into commands at ``;`` outside quotes; memory is bounded."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._quoted = False

    def feed(self, data: bytes) -> list[str]:
        """Return the commands that ``data`` completes."""
        text = data.decode("latin-1")
        commands: list[str] = []
        if '"' not in text and not self._quoted and len(self._text) + len(text) < _COMMAND_LIMIT:
            *ended, rest = text.split(";")
            if ended:
                commands = [("".join(self._text) + ended[0]).strip(), *map(str.strip, ended[1:])]
                self._text.clear()
            self._text.extend(rest)
            return commands
        for char in text:
            if char == ";" and not self._quoted:
                commands.append("".join(self._text).strip())
                self._text.clear()
            elif len(self._text) < _COMMAND_LIMIT:
                self._text.append(char)
                self._quoted ^= char == '"'
            else:
                # No command is that long: drop it with its quotes.
                self._text.clear()
                self._quoted = False
        return commands


def split_quoted(text: str, separator: str) -> list[str]:
    """Split at ``separator`` outside quotes."""
    if '"' not in text:
        return text.split(separator)
    parts, quoted = [""], False
    for char in text:
        quoted ^= char == '"'
        if char == separator and not quoted:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def parse_command(text: str) -> Tl1Request:
    """Parse ``VERB:TID:AID:CTAG:GENERAL:PAYLOAD...``; a missing ctag becomes 0."""
    parts = [part.strip() for part in split_quoted(text, ":")]
    parts += [""] * (5 - len(parts))
    return Tl1Request(parts[0].upper(), parts[2], parts[3] or "0", tuple(parts[5:]))


def frame(sid: str, head: str, body: Sequence[str], end: str = ";") -> str:
    """Return one block of a message: header, head line, body, terminator."""
    stamp = datetime.fromtimestamp(clock.time()).astimezone().strftime("%y-%m-%d %H:%M:%S")
    return "\r\n".join([f"\r\n\n   {sid} {stamp}", head, *body, end])


def frame_answer(sid: str, ctag: str, answer: Tl1Answer, rows_per_block: int) -> str:
    """Return a complete response, in several blocks if it has many rows."""
    head = f"M  {ctag} {'DENY' if answer.code else 'COMPLD'}"
    notes = [f"   /* {comment} */" for comment in answer.comments]
    lines = [f'   "{row}"' for row in answer.rows]
    if answer.code:
        return frame(sid, head, [f"   {answer.code}", *notes])
    blocks = []
    while rows_per_block and len(lines) > rows_per_block:
        blocks.append(frame(sid, head, lines[:rows_per_block], ">"))
        lines = lines[rows_per_block:]
    blocks.append(frame(sid, head, [*lines, *answer.text, *notes]))
    return "\r\n<".join(blocks)


def dated(row: str, firmware: Firmware) -> str:
    """Return a row as an older or newer release would write it."""
    if row.count("=") < 5 or firmware is Firmware.USUAL:
        return row
    if firmware is Firmware.NEW:
        return f'{row},SHELFNOTE=\\"left; upper, 2\\",EMPTY='
    return row.rpartition(",")[0]
