"""Tests that no reply of a SCPI or NETCONF switch breaks a codec or exceeds its memory bound."""

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from ocs_driver.calient import rows as calient
from ocs_driver.errors import OcsError
from ocs_driver.glimmerglass import rows as glimmerglass
from ocs_driver.polatis import rows, xml
from ocs_driver.ports import parse_size
from ocs_driver.scpi.codec import ReplyParser, parse_channels, parse_error, parse_states
from testbed.ocs_emulator.netconf_framing import Deframer, FramingError, frame
from testbed.ocs_emulator.scpi_text import LineScanner, ScpiError, channels, parse_line

PIECES = st.sampled_from(
    [b"(@1,2)", b"(@),(@)", b'"18"', b";", b"(", b")", b'"', b"\r", b"\n", b'-1,"x"', b"1:99999999"]
)
STREAMS = st.lists(st.one_of(PIECES, st.binary(max_size=20)), max_size=20).map(b"".join)


@given(STREAMS, st.integers(1, 9))
@settings(max_examples=300)
def test_scpi_replies(stream: bytes, size: int) -> None:
    whole, cut = ReplyParser(), ReplyParser()
    pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
    replies = whole.feed(stream)
    assert [r for piece in pieces for r in cut.feed(piece)] == replies
    for reply in replies:
        for read in (parse_channels, parse_error, lambda r: parse_states(r, 2), parse_size):
            with contextlib.suppress(OcsError):
                read(reply)


def test_an_endless_reply_is_bounded() -> None:
    parser = ReplyParser(max_bytes=100)
    assert parser.feed(b"x" * 1000) == []
    assert parser.overflowed


@given(st.text(max_size=300))
@settings(max_examples=300)
def test_rows_and_documents(text: str) -> None:
    for read in (
        lambda t: rows.parse_patch([t]),
        lambda t: rows.parse_power([t]),
        lambda t: rows.parse_serial([t]),
        lambda t: glimmerglass.parse_circuits([t]),
        lambda t: glimmerglass.parse_powers([t]),
        lambda t: calient.circuits([t]),
        lambda t: xml.parse_data(t, "opm-power"),
        lambda t: rows.parse_type([t]),
        xml.parse,
        lambda t: glimmerglass.parse_system([t]),
    ):
        with contextlib.suppress(OcsError):
            read(text)


@given(STREAMS)
@settings(max_examples=200)
def test_scpi_commands(stream: bytes) -> None:
    for line in LineScanner().feed(stream + b"\n"):
        for command in parse_line(line):
            with contextlib.suppress(ScpiError):
                channels(command.arguments)


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=5), st.integers(1, 7), st.booleans())
@settings(max_examples=200)
def test_netconf_framing_round_trip(messages: list[bytes], size: int, chunked: bool) -> None:
    wanted = [m for m in messages if b"]]>" not in m]
    data = b"".join(frame(m, chunked=chunked) for m in wanted)
    deframer, got = Deframer(), []
    deframer.chunked = chunked
    for start in range(0, len(data), size):
        deframer.feed(data[start : start + size])
        while (message := deframer.next()) is not None:
            got.append(message)
    assert got == wanted


@given(STREAMS, st.booleans())
@settings(max_examples=200)
def test_broken_framing_ends_the_session_and_nothing_else(stream: bytes, chunked: bool) -> None:
    deframer = Deframer()
    deframer.chunked = chunked
    with contextlib.suppress(FramingError):
        deframer.feed(stream)
        for _ in range(len(stream) + 1):
            if deframer.next() is None:
                break
        else:
            raise AssertionError("no progress")
