"""Parses SCPI replies and channel lists. Pure; tolerant, as samples show several formats."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ocs_driver.errors import OcsBadReply

_NUMBER = re.compile(r"\d{1,6}\Z", re.ASCII)
_RANGE = re.compile(r"(\d{1,6}):(\d{1,6})\Z", re.ASCII)
_LIST = re.compile(r"\s*\(@?([^()]*)\)\s*(?:,|\Z)")
_STATES = frozenset("DEF")
"""Disabled, enabled, failed."""
_ERROR = re.compile(r"\s*([+-]?\d{1,9})\s*(?:,\s*(.*))?\Z", re.S | re.ASCII)
_MOST_CHANNELS = 8192
"""Maximum channels in one reply: two lists of the largest switch."""


class ReplyParser:
    """Splits bytes into replies, which end at a line end or at ``;`` outside quotes and brackets.

    ``max_bytes`` bounds the buffer; ``overflowed`` shows that a reply was longer, ``open`` that
    a reply is incomplete.
    """

    def __init__(self, max_bytes: int = 1024 * 1024) -> None:
        self._max_bytes = max_bytes
        self._text: list[str] = []
        self._quoted = False
        self._depth = 0
        self.overflowed = False

    @property
    def open(self) -> bool:
        """Whether the buffer holds an incomplete reply."""
        return bool("".join(self._text).strip())

    def feed(self, data: bytes) -> list[str]:
        """Return the replies that ``data`` completes; blank lines are skipped."""
        replies: list[str] = []
        for char in data.decode("latin-1"):
            if char in "\r\n":
                self._end(replies)
                # An unbalanced quote or bracket must not consume the next reply.
                self._quoted, self._depth = False, 0
            elif char == ";" and not self._quoted and self._depth == 0:
                self._end(replies)
            else:
                self._accept(char)
        return replies

    def _accept(self, char: str) -> None:
        if len(self._text) >= self._max_bytes:
            self.overflowed = True
            self._text.clear()
            return
        self._text.append(char)
        if char == '"':
            self._quoted = not self._quoted
        elif not self._quoted and char == "(":
            self._depth += 1
        elif not self._quoted and char == ")" and self._depth:
            self._depth -= 1

    def _end(self, replies: list[str]) -> None:
        text = "".join(self._text).strip()
        self._text.clear()
        if text:
            replies.append(text)


def channels(ports: Iterable[str]) -> str:
    """Write a channel list: ``(@1,2,3)``."""
    return f"(@{','.join(ports)})"


def parse_channels(text: str) -> list[list[str]]:
    """Parse ``(@1,2),(@17,18)``; ``@`` and blanks optional, ranges ``5:7``. Raises OcsBadReply."""
    lists: list[list[str]] = []
    text = text.strip().strip('"')
    at = 0
    while at < len(text):
        found = _LIST.match(text, at)
        if found is None:
            raise OcsBadReply(text[:80], "a channel list is like (@1,2)")
        at = found.end()
        ports: list[str] = []
        for part in found[1].replace('"', "").replace("@", "").split(","):
            port = part.strip()
            span = _RANGE.match(port)
            if span and int(span[2]) - int(span[1]) < _MOST_CHANNELS:
                ports += [str(n) for n in range(int(span[1]), int(span[2]) + 1)]
            elif _NUMBER.match(port):
                ports.append(str(int(port)))
            elif port:
                raise OcsBadReply(text[:80], "a channel list holds port numbers")
            if len(ports) > _MOST_CHANNELS:
                raise OcsBadReply(text[:80], "more channels than any switch has")
        lists.append(ports)
    return lists


def parse_states(text: str, count: int) -> list[str]:
    """Parse ``(D,E,F)``: one letter for each of ``count`` ports. Raises OcsBadReply."""
    states = [part.strip().strip('"').upper() for part in text.strip().strip("()").split(",")]
    if len(states) != count or not _STATES.issuperset(states):
        raise OcsBadReply(text[:80], f"{count} states of ports are due: D, E or F")
    return states


def parse_error(text: str) -> tuple[int, str]:
    """Parse ``<code>, "<text>"``. Raises OcsBadReply without a code."""
    match = _ERROR.match(text)
    if match is None:
        raise OcsBadReply(text[:80], "an error reply must begin with a number")
    return int(match[1]), (match[2] or "").strip().strip('"')
