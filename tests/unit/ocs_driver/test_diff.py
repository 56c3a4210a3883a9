import pytest

from ocs_driver import Circuit, CircuitMap, CircuitRequest, CircuitState, Mode, OcsConflict
from ocs_driver.diff import diff

OURS, THEIRS = "lightloom", "DSTRAUB"


def circuit(
    a: str,
    b: str,
    *,
    duplex: bool = True,
    state: CircuitState = CircuitState.TUNED,
    owner: str = OURS,
) -> Circuit:
    return Circuit(a, b, duplex, state, f"{a}{'-' if duplex else '>'}{b}", owner)


def state(*circuits: Circuit) -> CircuitMap:
    return CircuitMap(circuits, 0.0)


def ask(a: str, b: str, *, duplex: bool = True) -> CircuitRequest:
    return CircuitRequest(a, b, duplex)


def test_circuits_in_the_requested_state_are_not_touched() -> None:
    before = state(circuit("1", "2"))
    assert not diff(before, [], [ask("1", "2")], mode=Mode.SAFE, group=OURS)
    assert not diff(before, [], [ask("2", "1")], mode=Mode.SAFE, group=OURS)
    assert not diff(before, [ask("5", "6")], [], mode=Mode.SAFE, group=OURS)


@pytest.mark.parametrize("dead", [CircuitState.PROVISIONED, CircuitState.FAILED])
def test_own_circuit_without_light_is_made_again(dead: CircuitState) -> None:
    stale = circuit("1", "2", state=dead)
    changes = diff(state(stale), [], [ask("1", "2")], mode=Mode.SAFE, group=OURS)
    assert changes.deletes == (stale,)
    assert changes.makes == (ask("1", "2"),)


def test_deletes_clear_the_way_for_makes() -> None:
    before = state(circuit("1", "3"), circuit("2", "4"))
    changes = diff(
        before,
        [ask("1", "3"), ask("2", "4")],
        [ask("1", "4"), ask("2", "3")],
        mode=Mode.SAFE,
        group=OURS,
    )
    assert len(changes.deletes) == len(changes.makes) == 2


def test_safe_refuses_a_busy_port_update_displaces_it() -> None:
    standing = circuit("1", "3")
    with pytest.raises(OcsConflict, match="port_busy"):
        diff(state(standing), [], [ask("1", "4")], mode=Mode.SAFE, group=OURS)
    changes = diff(state(standing), [], [ask("1", "4")], mode=Mode.UPDATE, group=OURS)
    assert changes.deletes == (standing,)


@pytest.mark.parametrize("mode", [Mode.SAFE, Mode.UPDATE])
def test_foreign_circuits_are_never_touched(mode: Mode) -> None:
    before = state(circuit("1", "3", owner=THEIRS))
    for delete, make in (
        ([ask("1", "3")], []),
        ([], [ask("1", "4")]),
        ([], [ask("1", "3")]),
    ):
        with pytest.raises(OcsConflict, match="foreign_circuit"):
            diff(before, delete, make, mode=mode, group=OURS)


def test_overwrite_displaces_only_conflicting_circuits() -> None:
    there = circuit("1", "3", owner=THEIRS)
    bystander = circuit("7", "8", owner=THEIRS)
    changes = diff(state(there, bystander), [], [ask("1", "4")], mode=Mode.OVERWRITE, group=OURS)
    assert changes.deletes == (there,)


def test_simplex_circuits_share_a_port_by_its_sides() -> None:
    before = state(circuit("1", "2", duplex=False))
    changes = diff(before, [], [ask("2", "3", duplex=False)], mode=Mode.SAFE, group=OURS)
    assert not changes.deletes
    with pytest.raises(OcsConflict, match="port_busy"):
        diff(before, [], [ask("1", "3", duplex=False)], mode=Mode.SAFE, group=OURS)


def test_duplex_delete_takes_both_simplex_halves() -> None:
    halves = (circuit("1", "2", duplex=False), circuit("2", "1", duplex=False))
    changes = diff(state(*halves), [ask("1", "2")], [], mode=Mode.SAFE, group=OURS)
    assert changes.deletes == halves


def test_half_a_duplex_circuit_cannot_be_deleted() -> None:
    with pytest.raises(OcsConflict, match="duplex_circuit"):
        diff(
            state(circuit("1", "2")), [ask("1", "2", duplex=False)], [], mode=Mode.SAFE, group=OURS
        )


def test_impossible_requests() -> None:
    with pytest.raises(OcsConflict, match="same_port"):
        diff(state(), [], [ask("1", "1")], mode=Mode.SAFE, group=OURS)
    with pytest.raises(OcsConflict, match="port_twice"):
        diff(state(), [], [ask("1", "2"), ask("1", "3")], mode=Mode.SAFE, group=OURS)
