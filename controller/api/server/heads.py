"""Checks the head of a request before it is parsed.

h11 matches header lines with regular expressions that take quadratic time on blanks before a
control character, and it checks a head's size only while the head is incomplete. A chunked body
costs it 15 µs a chunk and may end in further header lines, so bodies need a length here.
"""

from __future__ import annotations

import re

import h11

MAX_HEAD_BYTES = 16 * 2**10
MAX_HEAD_LINES = 100
_END = re.compile(rb"\n\r?\n")
_FOREIGN = re.compile(rb"[^\t\n\r\x20-\x7e\x80-\xff]|\r(?!\n|\Z)")
"""Bytes that are not allowed: control characters, and a CR that does not end a line."""


class StrictConnection(h11.Connection):
    """The server's side of one HTTP/1 connection; refuses costly heads before parsing."""

    refused = 400
    """Status for the last request that was refused."""
    why = ""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD_BYTES)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event. RemoteProtocolError with ``refused`` set."""
        if self.their_state is h11.IDLE:
            self._judge(self.trailing_data[0])
        event = super().next_event()
        if isinstance(event, h11.Request) and any(
            name == b"transfer-encoding" for name, _ in event.headers
        ):
            raise self._no(411, "a request's body needs a Content-Length")
        return event

    def _judge(self, waiting: bytes) -> None:
        """Check the head at the start of ``waiting``, or its part that has arrived."""
        end = _END.search(waiting, 0, MAX_HEAD_BYTES)
        if end is None and len(waiting) >= MAX_HEAD_BYTES:
            raise self._no(431, f"a request's head is longer than {MAX_HEAD_BYTES} bytes")
        head = waiting[: end.end()] if end is not None else waiting
        if head.count(b"\n") > MAX_HEAD_LINES:
            raise self._no(431, f"a request's head has more than {MAX_HEAD_LINES} lines")
        if _FOREIGN.search(head):
            raise self._no(400, "a request's head has control characters")

    def _no(self, status: int, why: str) -> h11.RemoteProtocolError:
        self.refused, self.why = status, why
        return h11.RemoteProtocolError(why, status)
