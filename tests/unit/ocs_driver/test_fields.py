import pytest

from ocs_driver.errors import OcsError
from ocs_driver.tl1.fields import parse_row
from ocs_driver.tl1.messages import Tl1Command, parameter
from tests.parts.ocs import transcripts as t


def test_empty_values_and_added_fields() -> None:
    row = parse_row(t.GLIMMERGLASS_ROW + ",NEWFIELD=1")
    assert row.get("IPORTCOMMENT", "absent") == ""
    assert row.get("INPWR") == "-12.05"
    assert row.get("NEWFIELD") == "1"
    assert row.get("MISSING", "default") == "default"


def test_positional_blocks() -> None:
    row = parse_row(t.DARK_PORT_ROW)
    assert row.positional == ("WX", "NONE", "NONE")
    assert row.get("OUTOC") == "OK"


def test_quoted_value_with_every_separator() -> None:
    row = parse_row(r"1.1.1:ALIAS=\"rack:1, left; a=b\",INPWR=-1.0")
    assert row.get("ALIAS") == "rack:1, left; a=b"
    assert row.get("INPWR") == "-1.0"


def test_unquoted_comma_in_a_value() -> None:
    row = parse_row("1.1.1:ALIAS=rack 1, left,INPWR=-1.0")
    assert row.get("ALIAS") == "rack 1, left"
    assert row.get("INPWR") == "-1.0"


def test_commands_are_written_as_documented() -> None:
    enter = Tl1Command("ENT-CRS", aid="1.1.1,2.2.2", tail="::lightloom,2WAY")
    assert enter.encode("5") == b"ENT-CRS::1.1.1,2.2.2:5::lightloom,2WAY;"
    assert Tl1Command("RTRV-CRS", tail="::ALL").encode("6") == b"RTRV-CRS:::6::ALL;"
    assert Tl1Command("CANC-USER", aid="admin").encode("7") == b"CANC-USER::admin:7;"


def test_parameters_are_quoted_only_where_needed() -> None:
    assert parameter("pa$$w0rd!") == "pa$$w0rd!"
    assert parameter('a;b"c\\') == r'"a;b\"c\\"'


def test_control_characters_never_reach_the_wire() -> None:
    with pytest.raises(OcsError, match="bad_parameter"):
        Tl1Command("ACT-USER", aid="x\r\nDLT-CRS:::1::ALL").encode("1")


def test_a_password_is_not_shown() -> None:
    assert "hunter2" not in str(Tl1Command("ACT-USER", aid="u", tail="::hunter2", secret=True))
