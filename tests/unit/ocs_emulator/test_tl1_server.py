from hypothesis import given
from hypothesis import strategies as st

from testbed.ocs_emulator.tl1_text import CommandScanner, parse_command


def test_commands_end_at_semicolons_outside_quotes() -> None:
    scanner = CommandScanner()
    assert scanner.feed(b'ACT-USER::u:1::"p;w";\r\nRTRV-') == ['ACT-USER::u:1::"p;w"']
    assert scanner.feed(b"NE;") == ["RTRV-NE"]


def test_blocks_of_a_command() -> None:
    request = parse_command("ent-crs::1.1.1,2.2.2:5::lightloom,2WAY")
    assert (request.verb, request.aid, request.ctag) == ("ENT-CRS", "1.1.1,2.2.2", "5")
    assert request.block(0) == "lightloom,2WAY"
    assert request.block(1) == ""
    assert parse_command("RTRV-NE").ctag == "0"
    assert parse_command("RTRV-CRS:::::ALL").block(0) == "ALL"


def test_endless_input_is_bounded() -> None:
    scanner = CommandScanner()
    assert scanner.feed(b'"' + b"x" * 200_000) == []
    scanner.feed(b";")
    assert scanner.feed(b"RTRV-NE;") == ["RTRV-NE"]


@given(st.lists(st.binary(max_size=40)))
def test_no_input_breaks_the_scanner(chunks: list[bytes]) -> None:
    scanner = CommandScanner()
    for chunk in chunks:
        for text in scanner.feed(chunk):
            parse_command(text)


@given(st.lists(st.sampled_from([b"A:", b";", b'"', b" b", b"\r\n", b"c;d"]), max_size=12))
def test_segments_do_not_matter_to_the_scanner(pieces: list[bytes]) -> None:
    one, other = CommandScanner(), CommandScanner()
    found = [text for piece in pieces for text in one.feed(piece)]
    assert found == [text for byte in b"".join(pieces) for text in other.feed(bytes([byte]))]
