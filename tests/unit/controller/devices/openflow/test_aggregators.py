"""The facade, against switches that speak OpenFlow over TCP."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import suppress

import pytest

from controller.devices.aggregators import (
    AggregatorConnected,
    AggregatorError,
    AggregatorLost,
    PortStatus,
)
from controller.devices.counters import PortCounters
from controller.devices.openflow.rules import compiler
from controller.devices.openflow.rules.program import diff
from controller.devices.openflow.session import messages
from controller.devices.openflow.session.osken import ofproto as ofp
from tests.parts.openflow.fake_switch import FakeSwitch, arp_reply, foreign_rule
from tests.parts.openflow.sites import attach
from tests.unit.controller.devices.openflow.conftest import Control

PLACES = attach(("gpu0", "as0", 1), ("gpu1", "as0", 2), ("gpu2", "as1", 1))
RED = {"red": ("gpu0", "gpu1", "gpu2")}
DEADLINE_S = 10.0


def programs(control: Control, epoch: int = 1, jobs=RED):
    return compiler.compile(control.site, epoch, PLACES, jobs)


def changes(switch: FakeSwitch) -> int:
    return switch.seen[ofp.OFPT_FLOW_MOD] + switch.seen[ofp.OFPT_GROUP_MOD]


async def joined(control: Control, *dpids: int) -> list[FakeSwitch]:
    switches = [FakeSwitch(dpid) for dpid in dpids or (0xA0,)]
    for switch in switches:
        await switch.connect(control.address)
    await control.until(lambda: len(control.aggregators.connected()) == len(switches))
    return switches


async def test_a_switch_is_announced_once_its_tables_are_known(control):
    await joined(control, 0xA0, 0xA1)
    assert control.aggregators.connected() == {"as0", "as1"}
    assert set(control.events) == {AggregatorConnected("as0"), AggregatorConnected("as1")}
    assert control.aggregators.carrier("as0") == {1: True, 2: True}


async def test_install_makes_the_tables_and_a_second_one_sends_nothing(control):
    switch, _ = await joined(control, 0xA0, 0xA1)
    wanted = programs(control)
    await control.aggregators.install(wanted, deadline_s=DEADLINE_S)
    assert {rule for rule, _ in switch.rules.values()} == set(wanted["as0"].rules)
    assert set(switch.groups) == {2}
    before = changes(switch)
    await control.aggregators.install(programs(control, epoch=2), deadline_s=DEADLINE_S)
    assert changes(switch) == before
    assert await control.aggregators.audit("as0") == []


async def test_install_leaves_other_aggregators_alone(control):
    one, two = await joined(control, 0xA0, 0xA1)
    await control.aggregators.install({"as0": programs(control)["as0"]}, deadline_s=DEADLINE_S)
    assert changes(one)
    assert not changes(two)


async def test_a_change_sends_only_the_difference(control):
    (switch,) = await joined(control)
    old, new = programs(control)["as0"], programs(control, 2, {})["as0"]
    await control.aggregators.install({"as0": old}, deadline_s=DEADLINE_S)
    before = changes(switch)
    await control.aggregators.install({"as0": new}, deadline_s=DEADLINE_S)
    steps = diff(old, new)
    assert changes(switch) - before == len(steps.remove) + len(steps.remove_groups)


async def test_a_reconnected_switch_with_the_right_tables_is_not_touched(control):
    (switch,) = await joined(control)
    wanted = {"as0": programs(control)["as0"]}
    await control.aggregators.install(wanted, deadline_s=DEADLINE_S)
    before = changes(switch)
    await switch.disconnect()
    await control.until(lambda: AggregatorLost("as0") in control.events)
    assert control.aggregators.connected() == frozenset()
    await switch.connect(control.address)
    await control.until(control.aggregators.connected)
    assert changes(switch) == before
    assert control.events[-1] == AggregatorConnected("as0")


async def test_a_switch_that_comes_back_empty_or_altered_is_repaired(control):
    (switch,) = await joined(control)
    wanted = {"as0": programs(control)["as0"]}
    await control.aggregators.install(wanted, deadline_s=DEADLINE_S)
    await switch.disconnect()
    strange = foreign_rule()
    switch.rules = {strange[0].key: strange}
    await control.until(lambda: not control.aggregators.connected())
    await switch.connect(control.address)
    await control.until(control.aggregators.connected)
    assert {rule for rule, _ in switch.rules.values()} == set(wanted["as0"].rules)
    assert len(control.events[-1].repaired) == len(wanted["as0"].rules) + 1


async def test_audit_names_what_was_tampered_with(control):
    (switch,) = await joined(control)
    wanted = programs(control)["as0"]
    await control.aggregators.install({"as0": wanted}, deadline_s=DEADLINE_S)
    gone = wanted.rules[-1]
    del switch.rules[gone.key]
    strange = foreign_rule()
    switch.rules[strange[0].key] = strange
    found = await control.aggregators.audit("as0")
    assert sorted(found) == sorted(
        [f"surplus or stale: {strange[0]}", f"missing or different: {gone}"]
    )
    await control.aggregators.install({"as0": wanted}, deadline_s=DEADLINE_S)
    assert await control.aggregators.audit("as0") == []


async def test_a_refused_rule_is_named_and_a_rollback_leaves_no_residue(control):
    (switch,) = await joined(control)
    old, new = programs(control, 1, {})["as0"], programs(control, 2)["as0"]
    await control.aggregators.install({"as0": old}, deadline_s=DEADLINE_S)
    switch.refuse = lambda rule: ("arp_tpa", "10.77.0.2") in rule.match
    with pytest.raises(AggregatorError) as caught:
        await control.aggregators.install({"as0": new}, deadline_s=DEADLINE_S)
    assert caught.value.code == "failed"
    assert caught.value.obj == "as0"
    assert "arp_tpa=10.77.0.2" in str(caught.value)
    assert "TABLE_FULL" in str(caught.value)
    await control.aggregators.install({"as0": old}, deadline_s=DEADLINE_S)
    assert {rule for rule, _ in switch.rules.values()} == set(old.rules)


async def test_a_timeout_leaves_the_outcome_unknown_and_the_next_install_reads_first(control):
    (switch,) = await joined(control)
    wanted = {"as0": programs(control)["as0"]}
    switch.barriers = False
    with pytest.raises(AggregatorError) as caught:
        await control.aggregators.install(wanted, deadline_s=0.05)
    assert caught.value.code == "timeout"
    switch.barriers = True
    reads = switch.seen[ofp.OFPT_MULTIPART_REQUEST]
    await control.aggregators.install(wanted, deadline_s=DEADLINE_S)
    assert switch.seen[ofp.OFPT_MULTIPART_REQUEST] > reads
    assert {rule for rule, _ in switch.rules.values()} == set(wanted["as0"].rules)


async def test_an_absent_aggregator_is_unavailable_and_gets_its_program_when_it_comes(control):
    wanted = {"as0": programs(control)["as0"]}
    with pytest.raises(AggregatorError) as caught:
        await control.aggregators.install(wanted, deadline_s=DEADLINE_S)
    assert caught.value.code == "unavailable"
    (switch,) = await joined(control)
    assert {rule for rule, _ in switch.rules.values()} == set(wanted["as0"].rules)


async def test_a_session_lost_while_installing_is_told_at_once(control):
    (switch,) = await joined(control)
    switch.barriers = False
    wanted = {"as0": programs(control)["as0"]}
    install = asyncio.create_task(control.aggregators.install(wanted, deadline_s=60))
    await control.until(lambda: switch.seen[ofp.OFPT_GROUP_MOD])
    await switch.disconnect()
    with pytest.raises(AggregatorError) as caught:
        await install
    assert caught.value.code == "unavailable"


async def test_unknown_names_are_not_found(control):
    with pytest.raises(AggregatorError) as caught:
        await control.aggregators.audit("as9")
    assert caught.value.code == "not_found"


async def test_probe_times_the_answer_at_that_port(control):
    (switch,) = await joined(control)
    cable = control.site.endpoint("gpu0")
    switch.neighbours[1] = (cable.ip, cable.mac)
    rtt = await control.aggregators.probe("as0", 1, cable.ip, cable.mac, deadline_s=DEADLINE_S)
    assert rtt is not None
    assert rtt >= 0


async def test_probe_wants_the_right_owner_at_the_right_port(control):
    (switch,) = await joined(control)
    cable, other = control.site.endpoint("gpu0"), control.site.endpoint("gpu1")
    switch.neighbours[1] = (cable.ip, other.mac)
    switch.packet_in(2, arp_reply(cable.ip, cable.mac))
    probe = control.aggregators.probe("as0", 1, cable.ip, cable.mac, deadline_s=0.1)
    assert await probe is None


async def test_port_counters(control):
    await joined(control)
    counters = await control.aggregators.port_counters("as0")
    assert counters == {
        1: PortCounters(1000, 2000, 10, 20, 3.5),
        2: PortCounters(2000, 4000, 20, 40, 3.5),
    }


async def test_port_status_is_posted(control):
    (switch,) = await joined(control)
    switch.port_status(2, up=False)
    await control.until(lambda: PortStatus("as0", 2, False) in control.events)
    assert control.aggregators.carrier("as0") == {1: True, 2: False}


async def test_stop_posts_no_loss_and_can_be_repeated(control):
    await joined(control)
    await control.aggregators.stop()
    await control.aggregators.stop()
    assert control.events == [AggregatorConnected("as0")]
    assert control.aggregators.connected() == frozenset()


async def test_a_flood_of_packet_ins_is_cut_off(control):
    (switch,) = await joined(control)
    cable = control.site.endpoint("gpu0")
    for _ in range(5000):
        switch.packet_in(1, arp_reply(cable.ip, cable.mac))
    assert await control.aggregators.audit("as0") == []


def test_messages_leave_in_kind_order(control):
    wanted = programs(control)["as0"]
    kinds = [
        {type(about).__name__ for about in batch.about}
        for batch in messages.batches(diff(programs(control, 1, {})["as0"], wanted))
    ]
    assert kinds == [{"GroupRule"}, *[{"FlowRule"}] * 3]


async def test_what_is_spared_stays_until_it_is_spared_no_more(control):
    """The tables then hold more than the program says, which an audit takes for right."""
    (switch,) = await joined(control)
    whole = programs(control)["as0"]
    await control.aggregators.install({"as0": whole}, deadline_s=DEADLINE_S)
    held = set(switch.rules)
    await switch.disconnect()
    await control.until(lambda: not control.aggregators.connected())

    bare = programs(control, 2, {})["as0"]
    cables = [control.site.endpoint(name) for name in RED["red"]]
    spared = frozenset(a for cable in cables for a in (cable.mac, cable.ip))
    sparing = dataclasses.replace(bare, spared=spared)
    with suppress(AggregatorError):
        await control.aggregators.install({"as0": sparing}, deadline_s=DEADLINE_S)
    await switch.connect(control.address)
    await control.until(lambda: control.aggregators.connected() == {"as0"})
    assert set(switch.rules) == held
    assert await control.aggregators.audit("as0") == []
    assert set(switch.rules) == held

    await control.aggregators.install({"as0": bare}, deadline_s=DEADLINE_S)
    assert set(switch.rules) == {rule.key for rule in bare.rules}
    assert await control.aggregators.audit("as0") == []
