"""Splits a stream of bytes into OpenFlow messages (OpenFlow 1.3.5, 7.1). Pure."""

from __future__ import annotations

from collections.abc import Iterator

HEADER_BYTES = 8


class BadFrameError(Exception):
    """A message whose length is shorter than its own header: nothing after it can be read."""


def take_frames(buffer: bytearray) -> Iterator[bytes]:
    """Take every whole message off the front of ``buffer``. BadFrameError."""
    while len(buffer) >= HEADER_BYTES:
        length = int.from_bytes(buffer[2:4])
        if length < HEADER_BYTES:
            raise BadFrameError(f"message length {length}")
        if len(buffer) < length:
            return
        frame = bytes(buffer[:length])
        del buffer[:length]
        yield frame
