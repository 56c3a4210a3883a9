"""A stream of bytes becomes OpenFlow messages."""

from __future__ import annotations

import pytest

from controller.devices.openflow.wire.framing import BadFrameError, take_frames
from tests.parts.openflow.fake_switch import message


def test_whole_messages_are_taken_and_the_rest_waits() -> None:
    last = message(4, 9, b"rest")
    buffer = bytearray(message(2, 7) + message(3, 8, b"abc") + last[:-1])
    assert list(take_frames(buffer)) == [message(2, 7), message(3, 8, b"abc")]
    assert buffer == last[:-1]
    buffer += last[-1:]
    assert list(take_frames(buffer)) == [last]
    assert not buffer


def test_part_of_a_header_waits() -> None:
    buffer = bytearray(b"\x04\x00\x00")
    assert list(take_frames(buffer)) == []
    assert buffer == b"\x04\x00\x00"


def test_a_length_below_the_header_is_an_error_after_the_messages_before_it() -> None:
    buffer = bytearray(message(2, 7) + b"\x04\x02\x00\x07\x00\x00\x00\x01")
    frames = take_frames(buffer)
    assert next(frames) == message(2, 7)
    with pytest.raises(BadFrameError, match="length 7"):
        next(frames)
