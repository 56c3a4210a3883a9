"""Parses SCPI lines into commands with channel lists. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE_LIMIT = 65536
_RANGE = re.compile(r"(\d+):(\d+)\Z")


class ScpiError(Exception):
    """An error for the queue: a code of SCPI-99 and its text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


@dataclass(slots=True, frozen=True)
class Scpi:
    """One command: its header's words in upper case, whether it is a query, its arguments."""

    words: tuple[str, ...]
    query: bool
    arguments: str

    def named(self, *pattern: str) -> bool:
        """Whether the header matches a pattern such as ``"SWITch"``, in short or long form."""
        return len(self.words) == len(pattern) and all(
            word in (long.upper(), "".join(c for c in long if not c.islower()))
            for word, long in zip(self.words, pattern, strict=True)
        )


class LineScanner:
    """Splits bytes into lines; drops overlong lines."""

    def __init__(self) -> None:
        self._line = bytearray()

    def feed(self, data: bytes) -> list[str]:
        """Return the non-empty lines that ``data`` completes."""
        lines = []
        for byte in data:
            if byte in b"\r\n":
                if self._line.strip():
                    lines.append(self._line.decode("latin-1").strip())
                self._line.clear()
            elif len(self._line) < _LINE_LIMIT:
                self._line.append(byte)
            else:
                self._line.clear()
        return lines


def parse_line(line: str) -> list[Scpi]:
    """Parse ``*CLS;:A:B (@1),(@2);*OPC?``."""
    commands = []
    for part in line.split(";"):
        header, _, arguments = part.strip().partition(" ")
        if header:
            words = header.rstrip("?").lstrip(":").upper().split(":")
            commands.append(Scpi(tuple(words), header.endswith("?"), arguments.strip()))
    return commands


def channels(text: str) -> list[list[str]]:
    """Parse ``(@1,2,5:7),(@17)``. Raises ScpiError for other text."""
    lists = []
    rest = text.strip()
    while rest:
        match = re.match(r"\(@([0-9,: ]*)\)\s*,?\s*", rest)
        if match is None:
            raise ScpiError(-102, "Syntax error")
        ports: list[str] = []
        for part in filter(None, match[1].replace(" ", "").split(",")):
            span = _RANGE.match(part)
            if span:
                ports += [str(n) for n in range(int(span[1]), min(int(span[2]), 99999) + 1)]
            else:
                ports.append(part)
        lists.append(ports)
        rest = rest[match.end() :]
    return lists
