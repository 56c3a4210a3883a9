from ocs_driver.tl1.messages import Ack, Overflow, Response, Tl1Report
from ocs_driver.tl1.parser import Tl1Parser
from tests.parts.ocs import transcripts as t


def parse(*chunks: bytes) -> list[object]:
    parser = Tl1Parser()
    return [message for chunk in chunks for message in parser.feed(chunk)]


def only_response(*chunks: bytes) -> Response:
    (message,) = parse(*chunks)
    assert isinstance(message, Response)
    return message


def test_login_reply_with_banner_comment_that_holds_a_semicolon_and_spans_lines() -> None:
    reply = only_response(t.LOGIN)
    assert (reply.sid, reply.time, reply.ctag) == ("CALIENT01TS", "16-10-31 15:01:34", "1")
    assert reply.ok
    assert reply.rows == ("zpollock:zpollock,2",)
    assert reply.comments == (
        "NOTICE This is a private computer system. Unauthorized access; or use is prohibited.",
    )


def test_reply_to_a_command_without_ctag_carries_zero() -> None:
    reply = only_response(t.IDENTITY)
    assert reply.ctag == "0"
    assert reply.rows == (t.IDENTITY_ROW,)


def test_rows_with_greater_sign_are_not_continuations() -> None:
    assert only_response(t.CIRCUITS).rows == (t.DUPLEX_ROW, t.SIMPLEX_ROW)


def test_denial_code_and_comment() -> None:
    reply = only_response(t.DENIAL)
    assert (reply.completion, reply.code, reply.ok) == ("DENY", "IIAC", False)
    assert reply.reason == "Input, Invalid AID; no such port"


def test_denial_with_code_and_text_on_one_line() -> None:
    reply = only_response(b"\r\n\n   X 16-10-31 15:01:36\r\nM  9 DENY\r\n   SARB, port busy\r\n;")
    assert (reply.code, reply.text) == ("SARB", ("port busy",))


def test_autonomous_message_between_answers() -> None:
    alarm, reply = parse(t.ALARM + t.CIRCUITS)
    assert isinstance(alarm, Tl1Report)
    assert (alarm.severity, alarm.verb, alarm.atag) == ("critical", "REPT ALM EQPT", "12")
    assert alarm.rows == ("1.1.1:CR,LOS,SA",)
    assert isinstance(reply, Response)


def test_autonomous_message_inside_an_answer() -> None:
    head, first, rest = t.CIRCUITS.partition(t.DUPLEX_ROW.encode() + b'"\r\n')
    alarm, reply = parse(head + first + t.ALARM + b"\r\n" + rest)
    assert isinstance(alarm, Tl1Report)
    assert isinstance(reply, Response)
    assert reply.rows == (t.DUPLEX_ROW, t.SIMPLEX_ROW)


def test_continuation_blocks_are_merged() -> None:
    head = b"\r\n\n   SW 16-10-31 15:01:36\r\nM  4 COMPLD\r\n"
    reply = only_response(head + b'   "a:1"\r\n>', b"\r\n<" + head + b'   "b:2"\r\n;')
    assert reply.rows == ("a:1", "b:2")


def test_autonomous_message_between_continuation_blocks() -> None:
    head = b"\r\n\n   SW 16-10-31 15:01:36\r\nM  4 COMPLD\r\n"
    alarm, reply = parse(head + b'   "a:1"\r\n>' + t.ALARM + head + b'   "b:2"\r\n;')
    assert isinstance(alarm, Tl1Report)
    assert isinstance(reply, Response)
    assert reply.rows == ("a:1", "b:2")


def test_acknowledgement_then_answer() -> None:
    ack, reply = parse(b"IP 7\r\n<" + t.CIRCUITS)
    assert ack == Ack("IP", "7")
    assert isinstance(reply, Response)


def test_prompt_and_echo_are_skipped() -> None:
    echo = b'agent>ENT-CRS::1.1.1,2.2.2:3::"a;b>c",2WAY;'
    assert only_response(b"\r\nagent>" + echo + t.CIRCUITS + b"\r\nagent>").ctag == "7"


def test_prompt_on_the_header_line() -> None:
    reply = only_response(b"agent>" + t.CIRCUITS.lstrip())
    assert reply.sid == "CALIENT01TS"


def test_nameless_switch() -> None:
    reply = only_response(b"\r\n\n   ( nil ) 16-10-31 15:01:36\r\nM  2 COMPLD\r\n;")
    assert reply.sid == "( nil )"


def test_lines_may_end_in_carriage_returns_only() -> None:
    reply = only_response(t.CIRCUITS.replace(b"\r\n", b"\r").replace(b"\n", b""))
    assert reply.rows == (t.DUPLEX_ROW, t.SIMPLEX_ROW)


def test_semicolon_in_quoted_label() -> None:
    row = rb"1.1.1:ALIAS=\"rack 1; left\",INPWR=-1.0"
    body = b"\r\n\n   S 16-10-31 15:01:36\r\nM  2 COMPLD\r\n   " + b'"' + row + b'"\r\n;'
    assert only_response(body).rows == (row.decode(),)


def test_unbalanced_quote_costs_its_row_only() -> None:
    body = b'\r\n\n   S 16-10-31 15:01:36\r\nM  2 COMPLD\r\n   "a:B="x"\r\n   "b:C=1"\r\n;'
    assert only_response(body).rows[-1] == "b:C=1"


def test_answer_cut_off_by_another_is_marked_incomplete() -> None:
    cut = t.CIRCUITS[: t.CIRCUITS.index(t.SIMPLEX_ROW.encode()) - 4]
    broken, whole = parse(cut + t.DENIAL)
    assert isinstance(broken, Response)
    assert isinstance(whole, Response)
    assert not broken.complete
    assert not broken.ok
    assert whole.code == "IIAC"


def test_row_separators_and_four_digit_years() -> None:
    body = b'\r\n\n   S 2016-10-31 15:01:36\r\nM  2 COMPLD\r\n   "1,25",\r\n   "2,26"\r\n;'
    assert only_response(body).rows == ("1,25", "2,26")


def test_a_message_too_long_is_dropped_and_reported() -> None:
    parser = Tl1Parser(max_bytes=1000)
    head = b"\r\n\n   S 16-10-31 15:01:36\r\nM  2 COMPLD\r\n/*"
    messages = [m for _ in range(30) for m in parser.feed(head + b"x" * 100)]
    assert any(isinstance(m, Overflow) for m in messages)
    (after,) = parser.feed(b"*/;" + t.CIRCUITS)[-1:]
    assert isinstance(after, Response)
