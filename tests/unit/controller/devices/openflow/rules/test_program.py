"""Differences between programs: minimal, ordered, convergent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.devices.openflow.rules.program import FlowDiff, FlowProgram, diff
from controller.devices.openflow.rules.rule import (
    FlowRule,
    Foreign,
    Goto,
    GroupRule,
    ToController,
    ToGroup,
    ToPort,
    WriteMetadata,
    match,
    pack_cookie,
    unpack_cookie,
)
from tests.parts.openflow.fake_table import FakeTable, steps_of

groups = st.builds(
    GroupRule, st.integers(1, 3), st.lists(st.integers(1, 4), unique=True).map(tuple)
)
actions = st.one_of(
    st.just(()),
    st.tuples(st.builds(ToPort, st.integers(1, 4))),
    st.tuples(st.builds(WriteMetadata, st.integers(1, 3)), st.just(Goto(2))),
)
rules = st.builds(
    FlowRule,
    table=st.integers(0, 2),
    priority=st.sampled_from([0, 200]),
    match=st.builds(lambda port: match(in_port=port), st.integers(1, 4)),
    actions=actions,
    cookie=st.builds(pack_cookie, st.integers(0, 5), st.integers(0, 3)),
)


@st.composite
def programs(draw):
    chosen = draw(st.lists(rules, unique_by=lambda r: r.key, max_size=12))
    made = draw(st.lists(groups, unique_by=lambda g: g.group, max_size=3))
    users = tuple(
        FlowRule(2, 200, match(metadata=g.group), (ToGroup(g.group),), 0)
        for g in made
        if draw(st.booleans())
    )
    return FlowProgram("as0", draw(st.integers(0, 5)), (*chosen, *users), tuple(made))


@given(programs(), programs())
def test_steps_lead_to_the_wanted_program_and_then_there_is_nothing_to_do(old, new):
    table = FakeTable.of(old)
    steps = diff(old, new)
    for step in steps_of(steps):
        table.step(step)
    assert not diff(table.program("as0"), new)


@given(programs())
def test_a_program_differs_not_from_itself_at_another_epoch(program):
    later = FlowProgram(
        "as0",
        9,
        tuple(
            FlowRule(r.table, r.priority, r.match, r.actions, pack_cookie(9, r.cookie & 0xFFFFFF))
            for r in program.rules
        ),
        program.groups,
    )
    assert not diff(program, later)
    assert diff(program, later) == FlowDiff()


def rule(table: int = 2, port: int = 1, to: int = 5, cookie: int = 0) -> FlowRule:
    return FlowRule(table, 200, match(in_port=port), (ToPort(to),), cookie)


def test_another_endpoint_in_the_cookie_is_a_difference():
    old = FlowProgram("as0", 1, (rule(cookie=pack_cookie(1, 1)),))
    new = FlowProgram("as0", 1, (rule(cookie=pack_cookie(1, 2)),))
    assert diff(old, new).add == new.rules


def test_changed_rules_are_overwritten_but_admissions_are_removed_first():
    old = FlowProgram("as0", 1, (rule(table=0), rule(table=2)))
    new = FlowProgram("as0", 2, (rule(table=0, to=6), rule(table=2, to=6)))
    steps = diff(old, new)
    assert [r.table for r in steps.remove] == [0]
    assert [r.table for r in steps.add] == [2, 0]


def test_a_foreign_rule_is_removed():
    strange = FlowRule(2, 200, match(in_port=1), (Foreign("meter:1"), ToPort(5)), 0)
    steps = diff(FlowProgram("as0", 0, (strange,)), FlowProgram("as0", 1))
    assert steps.remove == (strange,)
    assert steps.describe() == [
        "surplus or stale: table=2,priority=200,in_port=1 actions=meter:1,output:5"
    ]


def test_groups_change_in_place():
    old = FlowProgram("as0", 1, (), (GroupRule(1, (1,)), GroupRule(2, (2,))))
    new = FlowProgram("as0", 1, (), (GroupRule(1, (1, 2)), GroupRule(3, (3,))))
    steps = diff(old, new)
    assert steps.change_groups == (GroupRule(1, (1, 2)),)
    assert steps.add_groups == (GroupRule(3, (3,)),)
    assert steps.remove_groups == (GroupRule(2, (2,)),)


@given(st.integers(0, (1 << 40) - 2), st.integers(0, (1 << 24) - 1))
def test_cookies_round_trip(epoch, endpoint):
    assert unpack_cookie(pack_cookie(epoch, endpoint)) == (epoch, endpoint)


@pytest.mark.parametrize(("epoch", "endpoint"), [((1 << 40) - 1, 0), (-1, 0), (0, 1 << 24)])
def test_cookies_that_do_not_fit_are_refused(epoch, endpoint):
    with pytest.raises(ValueError, match="does not fit"):
        pack_cookie(epoch, endpoint)


MAC, IP = "02:00:00:00:01:01", "10.77.0.1"


def tagged(tag: int) -> tuple[FlowRule, ...]:
    """What an aggregator has for one member of a job, and of an uplink's group."""
    return (
        FlowRule(0, 200, match(in_port=1, eth_src=MAC), (WriteMetadata(tag), Goto(2)), 1),
        FlowRule(1, 200, match(metadata=tag, arp_tpa=IP), (Goto(2),), 1),
        FlowRule(2, 200, match(metadata=tag, eth_dst=MAC), (ToGroup(7),), 1),
    )


def test_rules_of_a_spared_endpoint_stay_and_so_does_their_group():
    group = GroupRule(7, (100,))
    probe = FlowRule(0, 300, match(in_port=1, eth_src=MAC), (ToController(),), 1)
    other = FlowRule(2, 200, match(metadata=3, eth_dst="02:00:00:00:01:02"), (ToPort(1),), 2)
    have = FlowProgram("as0", 1, (*tagged(3), probe, other), (group, GroupRule(8, (1,))))
    steps = diff(have, FlowProgram("as0", 2, spared=frozenset({MAC, IP})))
    assert set(steps.remove) == {probe, other}
    assert [g.group for g in steps.remove_groups] == [8]
    assert steps.spared == 3


def test_a_rule_with_the_tag_of_a_known_job_is_never_spared():
    """A new job of the same name has the same tag: the old one's members must not be in it."""
    new = FlowRule(2, 200, match(metadata=3, eth_dst="02:00:00:00:01:02"), (ToPort(1),), 2)
    have = FlowProgram("as0", 1, tagged(3))
    steps = diff(have, FlowProgram("as0", 2, (new,), spared=frozenset({MAC, IP})))
    assert set(steps.remove) == set(tagged(3))
    assert steps.spared == 0
