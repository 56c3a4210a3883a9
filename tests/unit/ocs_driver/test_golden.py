"""Tests the codecs with verbatim replies of real switches from public sources."""

import pytest

from ocs_driver import CircuitState, OcsError, Pair
from ocs_driver.calient import rows as calient
from ocs_driver.glimmerglass import rows as glimmerglass
from ocs_driver.polatis.model import numbering
from ocs_driver.polatis.rows import parse_patch, parse_power, parse_type
from ocs_driver.ports import MatrixPorts
from ocs_driver.scpi.codec import ReplyParser, parse_channels, parse_error, parse_states
from ocs_driver.tl1.fields import parse_row
from ocs_driver.tl1.messages import Response
from ocs_driver.tl1.parser import Tl1Parser

CALIENT_LOGIN = (
    b"\r\n\n   CALIENT01TS 16-10-31 15:01:34\r\nM  1 COMPLD\r\n"
    b'   "zpollock:zpollock,2"\r\n'
    b"   /* NOTICE This is a private computer system. ...*/\r\n;"
)
CALIENT_IDENTITY = (
    "CALIENT01TS:SERIALNUMBER=C00002227,SWPACKAGE=6.0-3,STATUS=OK,CHASSISTYPE=S162,"
    "PLATFORM=VERSION2"
)
CALIENT_DARK_PORT = (
    "1.1.1:WX,NONE,NONE:INAS=OOS-NP,INOS=OOS,INOC=OK,INRS=NPR,OUTAS=OOS-NP,OUTOS=OOS,"
    "OUTOC=OK,OUTRS=NPR"
)
CALIENT_LIT_PORT = (
    "6.1.1:WX,TRANSIT,TRANSIT:INAS=IS,INOS=IS,INOC=OK,INRS=NPR,OUTAS=IS,OUTOS=IS,OUTOC=OK,OUTRS=NPR"
)
CALIENT_DUPLEX = (
    "2.3.6-3.2.5:SRCPORT=2.3.6,DSTPORT=3.2.5,GRPNAME=DSTRAUB,CONNNAME=2.3.6-3.2.5,"
    "CONNTYPE=2WAY,AS=UMA,OS=RDY,OC=OK,PS=UPR,AL=CL"
)
CALIENT_SIMPLEX = (
    "2.8.5>2.3.3:SRCPORT=2.8.5,DSTPORT=2.3.3,GRPNAME=DSTRAUB,CONNNAME=2.8.5>2.3.3,"
    "CONNTYPE=1WAY,AS=UMA,OS=RDY,OC=FAIL,PS=UPR,AL=CL"
)
POLATIS_IDN = "Polatis,I-OST-24x24-LU1-DMHNS,002414,6.5.2.18"
GLIMMERGLASS_2016 = (
    "GGN:IPORTID=10001,IPORTGROUP=OpenGroup,IPORTNAME=IN1,IPORTCOMMENT=,INPWR=-12.05,"
    "OPORTID=20008,OPORTGROUP=OpenGroup,OPORTNAME=OUT8,OPORTCOMMENT=,OUTPWR=-13.63,"
    "SIGBAND=1550,PWRLOSS=1.57,CONNID=0,CONNNAME=IN1,CONNSTATE=steady,CONNCAUSE=none,"
    "CONNLOCK=0,CONNLOCKUSER=admin"
)
GLIMMERGLASS_CONTINUED = (
    b"\x1b[2J\x1b[H\r\n;\r\n"
    b'\r\n\n   GGN 16-05-11 09:12:40\r\nM  6 COMPLD\r\n   "'
    + GLIMMERGLASS_2016.encode()
    + b'"\r\n>'
    b'\r\n<\r\n\n   GGN 16-05-11 09:12:40\r\nM  6 COMPLD\r\n   "'
    + GLIMMERGLASS_2016.replace("10001", "10004").replace("20008", "20001").encode()
    + b'"\r\n;\r\n;\r\n'
)


def one(data: bytes) -> Response:
    (message,) = (m for m in Tl1Parser().feed(data) if isinstance(m, Response))
    return message


def test_calient_login_banner() -> None:
    reply = one(CALIENT_LOGIN)
    assert (reply.sid, reply.ctag, reply.ok) == ("CALIENT01TS", "1", True)
    assert reply.rows == ("zpollock:zpollock,2",)
    assert reply.comments[0].startswith("NOTICE This is a private")


def test_calient_rows() -> None:
    identity = parse_row(CALIENT_IDENTITY)
    assert (identity.get("CHASSISTYPE"), identity.get("SERIALNUMBER")) == ("S162", "C00002227")
    assert calient.health(parse_row(CALIENT_DARK_PORT)).value == "blocked"
    assert calient.health(parse_row(CALIENT_LIT_PORT)).value == "tuned"
    duplex, simplex = calient.circuits([CALIENT_DUPLEX, CALIENT_SIMPLEX])
    assert (duplex.a, duplex.b, duplex.duplex, duplex.owner) == ("2.3.6", "3.2.5", True, "DSTRAUB")
    assert (simplex.duplex, simplex.state) == (False, CircuitState.FAILED)


def test_polatis_tl1_rows() -> None:
    assert parse_patch(["1,25", " 3,40 "]) == [Pair("1", "25"), Pair("3", "40")]
    assert parse_power(["1:-12.34", "2:+1", "3:NONE"]) == {"1": -12.34, "2": 1.0}
    for read in (parse_patch, parse_power):
        with pytest.raises(OcsError, match="bad_reply"):
            read(["1,25", "1:-12.34", "SYSTEM:SIZE=24x24"])
    assert parse_type(["Polatis,N-VST-512x512-LA1-DMHNV-701,VST,6.8"])[0] == "Polatis"
    nil = b'\r\n\n   ( nil ) 21-03-02 10:00:00\r\nM  5 COMPLD\r\n   "1,25"\r\n;'
    assert (one(nil).sid, one(nil).rows) == ("( nil )", ("1,25",))


def test_polatis_scpi_replies() -> None:
    parser = ReplyParser()
    assert parser.feed(POLATIS_IDN.encode() + b'\r\n24,24\r(@1,2,3),(@19,18,22)\r\n"18"\r\n') == [
        POLATIS_IDN,
        "24,24",
        "(@1,2,3),(@19,18,22)",
        '"18"',
    ]
    assert parse_channels("(@1,2,3),(@19,18,22)") == [["1", "2", "3"], ["19", "18", "22"]]
    assert parse_channels("(@),(@)") == [[], []]
    assert parse_channels("(1:3),( 7 )") == [["1", "2", "3"], ["7"]]
    assert parse_states("(D,E,F)", 3) == ["D", "E", "F"]
    for short in ("(D,E)", "ERROR", ""):
        with pytest.raises(OcsError, match="bad_reply"):
            parse_states(short, 3)
    assert parse_error('-222, "Data out of range; port"') == (-222, "Data out of range; port")
    assert parse_error("0") == (0, "")
    assert numbering("I-OST-24x24-LU1-DMHNS", "24,24") == MatrixPorts(24, 24, 1, 25)
    assert numbering("N-VST-512x512-LA1-DMHNV-701").first_output == 513
    assert numbering("I-OST-48xCC-LU1").reciprocal


def test_glimmerglass_transcript_with_continuation() -> None:
    reply = one(GLIMMERGLASS_CONTINUED)
    assert reply.ctag == "6"
    first, second = glimmerglass.parse_circuits(reply.rows)
    assert (first.pair, first.state) == (Pair("10001", "20008"), CircuitState.TUNED)
    assert second.pair == Pair("10004", "20001")
    row, ports = glimmerglass.parse_system(
        ["GGN:SerialNumber=1,SystemType=System500,LicensedPortMatrix=48x48,SoftwareActiveVersion=5"]
    )
    assert row.get("SYSTEMTYPE") == "System500"
    assert (ports.beside("10001"), ports.fiber("20008")) == ("20001", "10008")
