"""Defines TL1 messages as values: one outgoing kind and four incoming kinds."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ocs_driver.errors import OcsError

# Characters that a parameter may hold unquoted: no TL1 separator, blank or control character.
_PLAIN = re.compile(r"[^\s:;,&\"\\\x00-\x1f\x7f-\xff]*\Z")
_PRINTABLE = re.compile(r"[\x20-\x7e]*\Z")

ACK_REJECTED = frozenset({"NG", "RL"})
"""Acknowledgements that mean the command was not executed."""


@dataclass(slots=True, frozen=True)
class Tl1Command:
    """A command ``VERB:tid:aid:ctag`` plus a ``tail`` that begins with its own colons."""

    verb: str
    aid: str = ""
    tail: str = ""
    tid: str = ""
    secret: bool = False
    """The tail holds a password and must not be logged."""

    def encode(self, ctag: str) -> bytes:
        """Return the bytes to send, terminator included."""
        text = f"{self.verb}:{self.tid}:{self.aid}:{ctag}{self.tail};"
        if not _PRINTABLE.match(text):
            raise OcsError("bad_parameter", self.verb, "parameters must be printable ASCII")
        return text.encode("ascii")

    def __str__(self) -> str:
        return f"{self.verb}:{self.tid}:{self.aid}" + (":***" if self.secret else self.tail)


def parameter(text: str) -> str:
    """Return ``text`` as a TL1 parameter, quoted if it contains separators."""
    if _PLAIN.match(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@dataclass(slots=True, frozen=True)
class Ack:
    """An interim acknowledgement (IP, PF, OK, NA, NG, RL)."""

    code: str
    ctag: str


@dataclass(slots=True, frozen=True)
class Response:
    """The complete response to one command, with continuation blocks merged.

    ``rows`` are the quoted payload lines without their outer quotes, ``comments`` the
    contents of ``/* */``, ``text`` the rest of the body.
    """

    sid: str
    time: str
    ctag: str
    completion: str
    code: str = ""
    rows: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    complete: bool = True
    """False when another response began before this one ended: its outcome is unknown."""

    @property
    def ok(self) -> bool:
        """Whether the switch reports complete success."""
        return self.complete and self.completion == "COMPLD"

    @property
    def reason(self) -> str:
        """The switch's own text, for operators."""
        return " ".join((*self.comments, *self.text)) or self.code or self.completion


@dataclass(slots=True, frozen=True)
class Tl1Report:
    """An autonomous message; ``severity`` is critical, major, minor or none."""

    sid: str
    time: str
    atag: str
    severity: str
    verb: str
    rows: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()
    text: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class Overflow:
    """The peer sent a message above the parser's limit; the whole message was dropped."""

    size: int


Message = Ack | Response | Tl1Report | Overflow
