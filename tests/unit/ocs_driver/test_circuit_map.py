"""Tests that a lookup in a map equals a comparison of the light paths one by one."""

from hypothesis import given
from hypothesis import strategies as st

from ocs_driver import Circuit, CircuitMap, CircuitRequest, CircuitState

_PORTS = st.sampled_from(["1", "2", "3", "10"])
_CIRCUITS = st.lists(
    st.builds(
        Circuit,
        a=_PORTS,
        b=_PORTS,
        duplex=st.booleans(),
        state=st.just(CircuitState.TUNED),
        name=st.uuids().map(str),
        owner=st.just("x"),
    ),
    max_size=8,
)
_REQUESTS = st.builds(CircuitRequest, _PORTS, _PORTS, st.booleans())


@given(_CIRCUITS, _REQUESTS)
def test_by_light_paths(circuits: list[Circuit], wanted: CircuitRequest) -> None:
    found = CircuitMap(tuple(circuits), 0.0)
    pairs = frozenset(wanted.pairs)
    same = [c for c in circuits if frozenset(c.pairs) == pairs]
    within = [c for c in circuits if frozenset(c.pairs) <= pairs]
    assert found.find(wanted) == (same[0] if same else None)
    assert [c for c in circuits if c.matches(wanted)] == same
    assert sorted(c.name for c in found.covered(wanted)) == sorted(c.name for c in within)


@given(_CIRCUITS, _PORTS, _PORTS)
def test_by_port(circuits: list[Circuit], a: str, b: str) -> None:
    found = CircuitMap(tuple(circuits), 0.0)
    assert list(found.on_port(a)) == [c for c in circuits if a in (c.a, c.b)]
    assert list(found.joining(a, b)) == [c for c in circuits if {c.a, c.b} == {a, b}]


def test_maps_are_equal_when_their_circuits_are() -> None:
    circuit = Circuit("1", "2", True, CircuitState.TUNED, "n", "x")
    assert CircuitMap((circuit,), 1.0) == CircuitMap((circuit,), 1.0)
    assert CircuitMap((circuit,), 1.0) != CircuitMap((), 1.0)
    assert "by_port" not in repr(CircuitMap((circuit,), 1.0))
