import pytest

from ocs_driver import CircuitState, OcsError, PortHealth
from ocs_driver.calient import rows
from ocs_driver.light import finite
from ocs_driver.tl1.fields import parse_row
from tests.parts.ocs import transcripts as t


def test_circuits_as_recorded() -> None:
    duplex, simplex = rows.circuits([t.DUPLEX_ROW, t.SIMPLEX_ROW])
    assert (duplex.a, duplex.b, duplex.duplex) == ("2.3.6", "3.2.5", True)
    assert (duplex.state, duplex.owner, duplex.name) == (
        CircuitState.TUNED,
        "DSTRAUB",
        "2.3.6-3.2.5",
    )
    assert (simplex.duplex, simplex.state, simplex.name) == (
        False,
        CircuitState.FAILED,
        "2.8.5>2.3.3",
    )


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("OS=RDY,OC=OK", CircuitState.TUNED),
        ("OS=RDY,OC=INIT", CircuitState.TUNING),
        ("OS=RDY,OC=NOHW", CircuitState.FAILED),
        ("OS=OOS,OC=INIT", CircuitState.PROVISIONED),
        ("OS=OOS-NP,OC=OK", CircuitState.PROVISIONED),
        ("OS=RDY,OC=NOVEL", CircuitState.TUNING),
    ],
)
def test_states(words: str, state: CircuitState) -> None:
    (circuit,) = rows.circuits([f"1.1.1-1.1.2:SRCPORT=1.1.1,DSTPORT=1.1.2,GRPNAME=,{words}"])
    assert circuit.state is state


def test_only_the_row_that_counts_mirrors_is_no_circuit() -> None:
    assert rows.circuits(["MATRIXUSED=4"]) == ()


@pytest.mark.parametrize(
    "row",
    [
        "x:SRCPORT=1.1.1",
        "x:SRCPORT=1.1.1,DSTPORT=,GRPNAME=a",
        "x:SRCPORT=1.1.1,DSTPORT=1.1.2",
        "busy",
        "",
    ],
)
def test_a_row_that_names_no_circuit_is_refused(row: str) -> None:
    with pytest.raises(OcsError, match="bad_reply"):
        rows.circuits([t.DUPLEX_ROW, row])


def test_port_health_as_recorded() -> None:
    assert rows.health(parse_row(t.DARK_PORT_ROW)) is PortHealth.BLOCKED
    assert rows.health(parse_row(t.USED_PORT_ROW)) is PortHealth.TUNED
    assert rows.health(parse_row(t.USED_PORT_ROW.replace("OC=OK", "OC=FAIL"))) is PortHealth.FAILED


def test_port_summary_as_recorded() -> None:
    row = parse_row(t.PORT_SUMMARY_ROW)
    assert rows.label(row) == ""
    assert finite(row.get("INPWR")) is None
    assert finite("-12.05") == -12.05
