from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.devices.aggregators import AttachPoint
from controller.transaction.circuits import (
    Cabling,
    End,
    EndpointEnd,
    RewiringError,
    SwitchChange,
    changes_between,
    end_of,
    homes,
    recognise,
    rewire,
    subject,
    without_ports,
)
from sitefile import load_site
from tests.parts.sites import PAPER

SITE = load_site(PAPER)
ENDPOINTS = [e.name for e in SITE.endpoints]
POINTS = [AttachPoint(a.name, port) for a in SITE.aggregators for port in a.fibers]


@st.composite
def attached(draw: st.DrawFn) -> dict[str, AttachPoint]:
    """Any partial matching of endpoints to aggregator ports."""
    points = draw(st.permutations(POINTS))
    lit = draw(st.lists(st.sampled_from(ENDPOINTS), unique=True))
    return dict(zip(lit, points, strict=False))


targets = st.dictionaries(st.sampled_from(ENDPOINTS), st.sampled_from(["as0", "as1", None]))


def pairs(attachments: dict[str, AttachPoint]) -> set[tuple[str, str]]:
    links = [Cabling(SITE).link(EndpointEnd(e), at) for e, at in attachments.items()]
    return {(found.a, found.b) for found in links if found is not None}


@given(attached(), targets, st.frozensets(st.sampled_from(POINTS), max_size=2))
def test_rewiring_carries_out_every_move_and_touches_nothing_else(
    before: dict[str, AttachPoint],
    moves: dict[str, str | None],
    blocked: frozenset[AttachPoint],
) -> None:
    blocked -= set(before.values())
    try:
        rewiring = rewire(SITE, before, moves, blocked)
    except RewiringError as error:
        after = {**homes(SITE, before), **moves}
        wanted = [home for home in after.values() if home == error.object]
        free = 4 - sum(point.aggregator == error.object for point in blocked)
        assert len(wanted) > free
        return
    after_homes = homes(SITE, rewiring.attachments)
    assert after_homes == {**homes(SITE, before), **moves}
    used = list(rewiring.attachments.values())
    assert len(set(used)) == len(used)
    assert not set(used) & blocked
    still = {e: at for e, at in before.items() if moves.get(e, at.aggregator) == at.aggregator}
    assert still.items() <= rewiring.attachments.items()
    # The map on the device: deletes remove existing circuits, makes use free ports only.
    on_device = pairs(before)
    for change in rewiring.changes:
        for gone in change.delete:
            on_device.remove((gone.a, gone.b))
        for made in change.make:
            assert not {made.a, made.b} & {port for pair in on_device for port in pair}
            on_device.add((made.a, made.b))
    assert on_device == pairs(dict(rewiring.attachments))
    for change in reversed(rewiring.changes):
        back = change.undone()
        on_device -= {(gone.a, gone.b) for gone in back.delete}
        on_device |= {(made.a, made.b) for made in back.make}
    assert on_device == pairs(before)


@given(attached(), st.booleans())
def test_recognise_reads_back_what_was_made(
    attachments: dict[str, AttachPoint], swapped: bool
) -> None:
    seen = [(b, a) if swapped else (a, b) for a, b in pairs(attachments)]
    found = recognise(SITE, "ocs0", seen)
    assert dict(found.attachments) == attachments
    assert not found.foreign


def test_foreign_circuits_block_their_ports() -> None:
    found = recognise(SITE, "ocs0", [("1.1.1", "1.1.2"), ("2.1.3", "8.8.8")])
    assert found.attachments == {}
    assert len(found.foreign) == 2
    assert found.taken_endpoints == {"gpu0", "gpu1"}
    assert found.taken_points == {AttachPoint("as0", 3)}


def test_a_circuit_between_two_aggregators_is_an_uplink() -> None:
    near, far = AttachPoint("as0", 3), AttachPoint("as1", 4)
    for pair in (("2.1.3", "2.2.4"), ("2.2.4", "2.1.3")):
        found = recognise(SITE, "ocs0", [pair, ("2.1.1", "2.1.2"), ("2.1.4", "2.1.4")])
        assert (found.attachments, found.uplinks) == ({}, {near: far})
        assert len(found.foreign) == 2, "one aggregator has no uplink to itself"
        assert found.taken_points == {AttachPoint("as0", port) for port in (1, 2, 4)}
    link = Cabling(SITE).link(near, far)
    assert link is not None
    assert (link.a, link.b, link.endpoint, link.name) == ("2.1.3", "2.2.4", "", "as0-3~as1-4")
    assert changes_between(SITE, {near: None}, {near: far}) == (SwitchChange("ocs0", (), (link,)),)
    assert subject(near, far) == subject(far, near) == "uplink/as0-3~as1-4"
    assert subject(EndpointEnd("gpu2"), near) == "endpoint/gpu2"


@pytest.mark.parametrize("end", [EndpointEnd("gpu2"), EndpointEnd("gpu2", 1), POINTS[0]], ids=str)
def test_an_end_is_read_as_it_is_written(end: End) -> None:
    assert end_of(str(end)) == end


def test_an_endpoint_on_a_blocked_port_moves_to_another_port_of_the_same_aggregator() -> None:
    before = {"gpu0": AttachPoint("as0", 1)}
    rewiring = rewire(SITE, before, {"gpu0": "as0"}, frozenset({AttachPoint("as0", 1)}))
    assert rewiring.attachments == {"gpu0": AttachPoint("as0", 2)}


def test_full_and_unknown_aggregators_are_refused() -> None:
    before = {e: AttachPoint("as0", i + 1) for i, e in enumerate(ENDPOINTS[:4])}
    with pytest.raises(RewiringError, match="no free port"):
        rewire(SITE, before, {"gpu5": "as0"})
    with pytest.raises(RewiringError, match="no aggregator as9"):
        rewire(SITE, before, {"gpu5": "as9"})


@given(attached(), targets, st.frozensets(st.sampled_from(POINTS), max_size=6))
def test_what_has_no_port_is_left_out_and_the_others_move(
    before: dict[str, AttachPoint],
    moves: dict[str, str | None],
    blocked: frozenset[AttachPoint],
) -> None:
    refused = without_ports(SITE, before, moves, blocked)
    left = {e: home for e, home in moves.items() if e not in refused}
    after = rewire(SITE, before, left, blocked).attachments
    assert {e: homes(SITE, after)[e] for e in left} == left
    earlier: dict[str, str | None] = {}
    for endpoint, home in moves.items():
        if endpoint not in refused:
            earlier[endpoint] = home
            continue
        with pytest.raises(RewiringError):
            rewire(SITE, before, {**earlier, endpoint: home}, blocked)
