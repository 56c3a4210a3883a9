import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from ocs_driver.tl1.fields import parse_row
from ocs_driver.tl1.messages import Message
from ocs_driver.tl1.parser import Tl1Parser
from tests.parts.ocs import transcripts as t

PIECES = st.sampled_from(
    [
        t.LOGIN,
        t.IDENTITY,
        t.CIRCUITS,
        t.DENIAL,
        t.ALARM,
        b"\r\n\n   ( nil ) 16-10-31 15:01:34\r\n",
        b"M  4 COMPLD\r\n",
        b"M  5 PRTL\r\n",
        b"A  3 REPT EVT\r\n",
        b"agent>",
        b"IP 4\r\n<",
        b'"',
        b"\\",
        b"/*",
        b"*/",
        b">",
        b";",
        b"\r",
        b"\n",
        b"\r\n",
    ]
)
STREAMS = st.lists(st.one_of(PIECES, st.binary(max_size=20)), max_size=20).map(b"".join)


def whole(data: bytes) -> list[Message]:
    return Tl1Parser().feed(data)


@given(STREAMS, st.data())
@settings(max_examples=200)
def test_the_split_into_segments_does_not_matter(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    parser = Tl1Parser()
    parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [m for part in parts for m in parser.feed(part)] == whole(stream)


_NEWLINE = st.sampled_from(["\r\n", "\r\n\n", "\n", "\r", "\r\n\r\n\n"])
_ROW = st.from_regex(r' {0,3}"[a-z,;:>/* ]{0,12}",?', fullmatch=True)
_BLOCK = st.builds(
    "{0}{1}   SW-1 16-10-31 15:01:34{2}M  {3} COMPLD\r\n{4}{5}".format,
    _NEWLINE,
    st.sampled_from(["", "<", "agent>", "   "]),
    _NEWLINE,
    st.sampled_from(["1", "2", "x9"]),
    st.lists(st.builds("{0}{1}".format, _ROW, _NEWLINE), max_size=4).map("".join),
    st.sampled_from([";", ";", ">", "\r\n;", "/* note */;", "   ICNV\r\n;"]),
)
_ANSWERS = st.lists(_BLOCK, max_size=6).map("".join)


@given(_ANSWERS, st.integers(40, 400))
@settings(max_examples=120)
def test_fast_and_bytewise_parsing_agree(text: str, most: int) -> None:
    """Plain responses take a fast path through the parser, with the same memory bound."""
    slow, fast = Tl1Parser(most), Tl1Parser(most)
    data = text.encode()
    one_by_one = [m for byte in data for m in slow.feed(bytes([byte]))]
    assert fast.feed(data) == one_by_one
    assert fast.feed(t.DENIAL) == slow.feed(t.DENIAL)


def test_the_bound_on_memory_is_the_same_to_the_byte() -> None:
    block = '\r\n\n   SW 16-10-31 15:01:34\r\nM  1 COMPLD\r\n   "a,b"\r\n   "c"\r\n'
    data = f"{block}>\r\n<{block};{block};".encode()
    for most in range(20, len(data)):
        slow = Tl1Parser(most)
        one_by_one = [m for byte in data for m in slow.feed(bytes([byte]))]
        assert Tl1Parser(most).feed(data) == one_by_one, most


def test_every_single_cut_of_the_transcripts_gives_the_same_messages() -> None:
    stream = t.LOGIN + t.ALARM + t.CIRCUITS + t.DENIAL
    expected = whole(stream)
    assert len(expected) == 4
    for cut in range(len(stream)):
        parser = Tl1Parser()
        assert parser.feed(stream[:cut]) + parser.feed(stream[cut:]) == expected


@given(STREAMS)
@settings(max_examples=100)
def test_memory_is_bounded_and_the_parser_recovers(noise: bytes) -> None:
    parser = Tl1Parser(max_bytes=2000)
    for _ in range(20):
        parser.feed(noise)
    held = parser.__dict__
    # Held text is at most the bound plus one noise line; drafts hold what was counted.
    assert len(held["_line"]) <= 4096
    assert held["_held"] <= 2000
    assert len(held["_continued"]) <= 2000
    # An open comment or continuation may consume the following data up to the bound.
    messages = parser.feed(b"\r\n" * 2001 + b"*/;;" + t.CIRCUITS + t.CIRCUITS)
    assert any(getattr(m, "ctag", "") == "7" and getattr(m, "ok", False) for m in messages)


@given(st.text(max_size=300))
@settings(max_examples=200)
def test_any_row_can_be_read(text: str) -> None:
    row = parse_row(text)
    assert sys.getsizeof(row.aid) < 4096


def test_a_row_of_separators_is_read_in_linear_time() -> None:
    row = parse_row("a:K=" + "," * 500_000)
    assert row.aid == "a"
