"""Implements NETCONF framing over SSH (RFC 6242): marks in 1.0, chunks in 1.1. Pure."""

from __future__ import annotations

import re

_END_1_0 = b"]]>]]>"
_CHUNK = re.compile(rb"\n#(?:([1-9][0-9]{0,9})|#)\n")
_HEADER_LIMIT = 16
_MESSAGE_LIMIT = 1024 * 1024


class FramingError(Exception):
    """The peer violated the framing; the session must end (RFC 6242 section 4.1)."""


class Deframer:
    """Turns bytes into messages. Starts with 1.0; ``chunked`` switches to 1.1."""

    def __init__(self) -> None:
        self.chunked = False
        self._data = bytearray()
        self._message = bytearray()

    def feed(self, data: bytes) -> None:
        """Add bytes. Raises FramingError when a message grows too large."""
        self._data += data
        if len(self._data) + len(self._message) > _MESSAGE_LIMIT:
            raise FramingError("message too long")

    def next(self) -> bytes | None:
        """Return the next complete message, or None. Raises FramingError on invalid framing."""
        return self._next_chunked() if self.chunked else self._next_marked()

    def _next_marked(self) -> bytes | None:
        end = self._data.find(_END_1_0)
        if end < 0:
            return None
        message = bytes(self._data[:end])
        del self._data[: end + len(_END_1_0)]
        return message

    def _next_chunked(self) -> bytes | None:
        while True:
            match = _CHUNK.match(self._data)
            if match is None:
                if len(self._data) >= _HEADER_LIMIT or not b"\n#".startswith(self._data[:2]):
                    raise FramingError("bad chunk header")
                return None
            if match[1] is None:
                del self._data[: match.end()]
                message = bytes(self._message)
                self._message.clear()
                return message
            size = int(match[1])
            if size > _MESSAGE_LIMIT:
                raise FramingError("chunk too long")
            if len(self._data) < match.end() + size:
                return None
            self._message += self._data[match.end() : match.end() + size]
            del self._data[: match.end() + size]


def frame(message: bytes, *, chunked: bool) -> bytes:
    """Return a message with its framing."""
    if chunked:
        return b"\n#%d\n%s\n##\n" % (len(message), message)
    return message + _END_1_0
