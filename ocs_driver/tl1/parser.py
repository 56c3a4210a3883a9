"""Parses bytes into TL1 messages, incrementally and in bounded memory.

The grammar follows real devices rather than GR-831: a header or an M line opens a message
and ``;`` outside quotes and comments ends it, so prompts, echoed commands and banners
between messages are skipped; lines may end in CR, LF or both; an autonomous message may
arrive inside a response. The parser works character by character, so that the split into
TCP segments does not matter. Only a plain response that is complete in the buffer is parsed
in one step, with the same result.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum, auto

from ocs_driver.tl1.messages import Ack, Message, Overflow, Response, Tl1Report

_STAMP = re.compile(r"(\d\d(?:\d\d)?-\d\d-\d\d)\s(\d\d:\d\d:\d\d)\Z")
_ANSWER = re.compile(r"M\s+(\S+)\s+(COMPLD|DENY|PRTL|DELAY|RTRV)\b")
_REPORT = re.compile(r"(A|\*C|\*\*|\*\^)\s+(\S+)\s+(\S.*)\Z")
_ACK = re.compile(r"(IP|PF|OK|NA|NG|RL)\s+(\S+)\Z")
_CODE = re.compile(r"([A-Z]{4})(?![A-Za-z0-9])")
_SEVERITY = {"A": "none", "*C": "critical", "**": "major", "*^": "minor"}

_PLAIN_BLOCK = re.compile(
    r"[\r\n]{1,4}+<? {0,4}(\( nil \)|[A-Za-z0-9_.-]{1,64}) "
    r"(\d\d-\d\d-\d\d) (\d\d:\d\d:\d\d)[\r\n]{1,2}+"
    r"(M {1,4}([A-Za-z0-9]{1,16}) COMPLD)[\r\n]"
    r'((?:[\r\n]*+ *+"[^"\\\r\n]*+",?(?=[\r\n]))*+)[\r\n]*+([;>])',
    re.ASCII,
)
"""Header, M line and quoted rows only, up to the end of the response or of one of its blocks."""
_QUOTED = re.compile(r'"([^"]*)"')

_ORDINARY = re.compile(r'[^"\\\r\n]+')
_STAMP_LENGTH = 24
_NOISE_LINE = 4096
"""Characters kept of a line outside messages; no relevant line is longer."""


class _Lexeme(Enum):
    PLAIN = auto()
    QUOTE = auto()
    COMMENT = auto()


@dataclass(slots=True)
class _Draft:
    """An incomplete message."""

    sid: str
    time: str
    tag: str
    kind: str
    is_answer: bool
    rows: list[str] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    code: str = ""

    def finish(self, *, complete: bool = True) -> Message:
        rows, comments, text = tuple(self.rows), tuple(self.comments), tuple(self.text)
        if not self.is_answer:
            verb = self.kind.partition(" ")[2].strip()
            severity = _SEVERITY[self.kind.partition(" ")[0]]
            return Tl1Report(self.sid, self.time, self.tag, severity, verb, rows, comments, text)
        return Response(
            self.sid, self.time, self.tag, self.kind, self.code, rows, comments, text, complete
        )


class Tl1Parser:
    """Turns bytes into messages. ``max_bytes`` bounds its memory at any time."""

    def __init__(self, max_bytes: int = 1024 * 1024) -> None:
        self._max_bytes = max_bytes
        self._out: list[Message] = []
        self._reset()

    def _reset(self) -> None:
        self._line: list[str] = []
        self._lexeme = _Lexeme.PLAIN
        self._escaped = False
        self._comment: list[str] = []
        self._header: tuple[str, str] | None = None
        self._draft: _Draft | None = None
        self._suspended: _Draft | None = None
        self._continued: dict[str, _Draft] = {}
        self._held = 0

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that ``data`` completes, in order."""
        text = data.decode("latin-1")
        at = 0
        while at < len(text):
            if self._draft is None:
                end = self._plain_block(text, at) if text[at] in "\r\n" else 0
                if end:
                    at = end
                    continue
                self._outside(text[at])
            elif self._lexeme is _Lexeme.QUOTE and not self._escaped:
                # Most of a response is quoted rows: consume their ordinary characters at once.
                ordinary = _ORDINARY.match(text, at, at + self._max_bytes - self._held)
                if ordinary is not None and ordinary.end() > at:
                    self._line.append(ordinary[0])
                    self._held += len(ordinary[0])
                    at = ordinary.end()
                    continue
                self._inside(text[at])
            else:
                self._inside(text[at])
            at += 1
        out, self._out = self._out, []
        return out

    def _plain_block(self, text: str, at: int) -> int:
        """Parse a complete plain response, or a block of one; return its end, else 0."""
        if self._line or self._header is not None:
            return 0
        block = _PLAIN_BLOCK.match(text, at)
        if block is None:
            return 0
        sid, date, time, line, tag, rows, end = block.groups()
        held = self._held + len(line) + block.end() - block.end(4) - 1
        if held > self._max_bytes:
            return 0
        draft = self._continued.pop(tag, None)
        if draft is None:
            draft = _Draft(sid, f"{date} {time}", tag, "COMPLD", is_answer=True)
        draft.kind = "COMPLD"
        draft.rows += _QUOTED.findall(rows)
        self._held = held
        if end == ">":
            self._continued[tag] = draft
        else:
            self._out.append(draft.finish())
            if not self._continued:
                self._held = 0
        return block.end()

    # -- characters ------------------------------------------------------------

    def _outside(self, char: str) -> None:
        if char in "\r\n":
            self._end_line()
        elif char == ";":
            self._line.clear()
        elif len(self._line) < _NOISE_LINE:
            self._line.append(char)

    def _inside(self, char: str) -> None:
        self._held += 1
        if self._held > self._max_bytes:
            size = self._held
            self._reset()
            self._out.append(Overflow(size))
        elif self._lexeme is _Lexeme.COMMENT:
            self._in_comment(char)
        elif char in "\r\n":
            # An unbalanced quote must not consume the rest: no value spans lines.
            self._lexeme, self._escaped = _Lexeme.PLAIN, False
            self._end_line()
        elif self._lexeme is _Lexeme.QUOTE:
            self._in_quote(char)
        else:
            self._in_plain(char)

    def _in_comment(self, char: str) -> None:
        if char == "/" and self._comment and self._comment[-1] == "*":
            self._comment.pop()
            if self._draft is not None:
                self._draft.comments.append(" ".join("".join(self._comment).split()))
            self._comment = []
            self._lexeme = _Lexeme.PLAIN
        else:
            self._comment.append(char)

    def _in_quote(self, char: str) -> None:
        self._line.append(char)
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._lexeme = _Lexeme.PLAIN

    def _in_plain(self, char: str) -> None:
        if char == ";":
            self._end_line()
            self._end_message()
        elif char == ">" and not "".join(self._line).strip():
            self._line.clear()
            self._pause_message()
        elif char == "*" and self._line and self._line[-1] == "/":
            self._line.pop()
            self._lexeme = _Lexeme.COMMENT
        else:
            self._line.append(char)
            if char == '"':
                self._lexeme = _Lexeme.QUOTE

    # -- lines -----------------------------------------------------------------

    def _end_line(self) -> None:
        line = "".join(self._line).strip()
        self._line.clear()
        if not line:
            return
        header, self._header = self._header, None
        if self._open(line, header):
            return
        stamp = None if line.startswith('"') else _STAMP.search(line[-_STAMP_LENGTH:])
        if stamp is not None:
            name = line[: len(line) - (stamp.end() - stamp.start())]
            # A prompt may precede the name: "agent>CALIENT01TS 16-10-31 ...".
            sid = name.rpartition(">")[2].strip(" <")
            self._header = (sid, f"{stamp[1]} {stamp[2]}")
        elif self._draft is not None:
            self._body_line(self._draft, line)
        else:
            ack = _ACK.match(line.rpartition(">")[2].strip())
            if ack is not None:
                self._out.append(Ack(ack[1], ack[2]))

    def _open(self, line: str, header: tuple[str, str] | None) -> bool:
        """Start or continue the message that ``line`` announces; return whether it does."""
        sid, time = header or ("", "")
        report = None if header is None else _REPORT.match(line)
        if report is not None:
            if self._draft is not None and self._draft.is_answer:
                self._suspended = self._draft
            elif self._draft is not None:
                self._out.append(self._draft.finish())
            kind = f"{report[1]} {report[3]}"
            self._draft = _Draft(sid, time, report[2], kind, is_answer=False)
            self._held += len(line)
            return True
        answer = _ANSWER.match(line) if header is not None or self._draft is None else None
        if answer is None:
            return False
        self._held += len(line)
        tag, completion = answer[1], answer[2]
        current = self._draft
        if current is not None and not current.is_answer:
            self._out.append(current.finish())
            current = self._suspended
        self._suspended = None
        if current is not None and current.tag != tag:
            self._out.append(current.finish(complete=False))
            current = None
        if current is None:
            current = self._continued.pop(tag, None)
        self._draft = current or _Draft(sid, time, tag, completion, is_answer=True)
        self._draft.kind = completion
        return True

    @staticmethod
    def _body_line(draft: _Draft, line: str) -> None:
        if line.startswith('"'):
            row = line.rstrip(",").rstrip()
            draft.rows.append(row[1:-1] if len(row) > 1 and row.endswith('"') else row[1:])
            return
        code = _CODE.match(line) if draft.kind == "DENY" and not draft.code else None
        if code is None:
            draft.text.append(line)
            return
        draft.code = code[1]
        rest = line[4:].strip(" ,:")
        if rest:
            draft.text.append(rest)

    # -- messages --------------------------------------------------------------

    def _end_message(self) -> None:
        if self._draft is None:
            return
        self._out.append(self._draft.finish())
        self._draft, self._suspended = self._suspended, None
        self._header = None
        if self._draft is None and not self._continued:
            self._held = 0

    def _pause_message(self) -> None:
        """Handle a block that ends in ``>``: the response continues under a repeated header."""
        draft, self._header = self._draft, None
        self._draft, self._suspended = self._suspended, None
        if draft is not None and draft.is_answer:
            self._continued[draft.tag] = draft
        elif draft is not None:
            self._out.append(draft.finish())
