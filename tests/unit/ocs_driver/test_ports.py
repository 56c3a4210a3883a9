import pytest

from ocs_driver import CircuitRequest, CircuitState, OcsConflict, OcsError, Pair
from ocs_driver.pairs import WirePair, merge
from ocs_driver.ports import MatrixPorts, parse_size

SIDED = MatrixPorts(24, 24, 1, 25)
ANY = MatrixPorts(48, 0)


def test_sizes() -> None:
    assert parse_size("24x24") == SIDED
    assert parse_size("24,24") == SIDED
    assert parse_size("48xCC") == ANY
    with pytest.raises(OcsError, match="bad_size"):
        parse_size("many")


@pytest.mark.parametrize("ports", [("1", "2"), ("1", "26"), ("25", "26")])
def test_a_duplex_circuit_is_two_pairs(ports: tuple[str, str]) -> None:
    request = SIDED.inward(CircuitRequest(*ports))
    assert SIDED.wire(request) == (Pair("1", "26"), Pair("2", "25"))


def test_one_way_circuits() -> None:
    request = SIDED.inward(CircuitRequest("1", "26", duplex=False))
    assert SIDED.wire(request) == (Pair("1", "26"),)
    assert SIDED.outward(request.a, request.b, duplex=False) == ("1", "26")
    loop = SIDED.inward(CircuitRequest("1", "25"))
    assert SIDED.wire(loop) == (Pair("1", "25"),)
    with pytest.raises(OcsError, match="input"):
        SIDED.inward(CircuitRequest("25", "1", duplex=False))


def test_any_to_any_paths_are_duplex() -> None:
    request = ANY.inward(CircuitRequest("7", "3", duplex=False))
    assert request.duplex
    assert ANY.wire(request) == (Pair("3", "7"),)


def test_malformed_ports() -> None:
    for bad in ("x", "", "-1", "1;2"):
        with pytest.raises(OcsError, match="bad_port"):
            SIDED.inward(CircuitRequest(bad, "2"))
    with pytest.raises(OcsConflict, match="same_port"):
        ANY.inward(CircuitRequest("2", "2"))


def test_opposite_pairs_of_one_owner_are_one_circuit() -> None:
    pairs = [
        WirePair(Pair("1", "26")),
        WirePair(Pair("2", "25"), CircuitState.FAILED, "dark"),
        WirePair(Pair("3", "28")),
        WirePair(Pair("4", "27")),
    ]
    ours = {"1,26": "lightloom", "2,25": "lightloom", "3,28": "lightloom"}
    whole, mine, theirs = merge(SIDED, pairs, ours)
    assert (whole.a, whole.b, whole.duplex, whole.state) == ("1", "2", True, CircuitState.FAILED)
    assert [(c.a, c.duplex, c.owner) for c in (mine, theirs)] == [
        ("3", False, "lightloom"),
        ("4", False, ""),
    ]
