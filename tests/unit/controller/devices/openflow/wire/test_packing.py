"""Our packer against os-ken's: the same bytes, or none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.devices.openflow.rules import compiler
from controller.devices.openflow.rules.program import FlowDiff
from controller.devices.openflow.rules.rule import (
    FlowRule,
    Foreign,
    Goto,
    GroupRule,
    SetField,
    SetQueue,
    ToController,
    ToGroup,
    ToPort,
    WriteMetadata,
    match,
)
from controller.devices.openflow.session import messages
from controller.devices.openflow.wire import packing
from tests.parts.openflow.sites import attach, make_site

SITE = make_site()
PLACES = attach(("gpu0", "as0", 1), ("gpu1", "as0", 2), ("gpu2", "as1", 1), ("gpu3", "as1", 2))
JOBS = {"red": ("gpu0", "gpu1", "gpu2"), "blue": ("gpu3",)}

MACS = st.integers(0, 2**48 - 1).map(lambda n: n.to_bytes(6).hex(":"))
IPS = st.ip_addresses(v=4).map(str)
VALUES = {
    "in_port": st.integers(0, 2**32 - 1),
    "metadata": st.integers(0, 2**64 - 1),
    "eth_dst": MACS,
    "eth_src": MACS,
    "eth_type": st.integers(0, 0xFFFF),
    "vlan_vid": st.integers(0, 0x1FFF),
    "ip_dscp": st.integers(0, 63),
    "ip_proto": st.integers(0, 255),
    "ipv4_src": IPS,
    "ipv4_dst": IPS,
    "udp_dst": st.integers(0, 0xFFFF),
    "arp_op": st.integers(0, 0xFFFF),
    "arp_spa": IPS,
    "arp_tpa": IPS,
    "arp_sha": MACS,
}
FIELDS = st.fixed_dictionaries({}, optional=VALUES).map(lambda d: match(**d))
ACTIONS = st.tuples(
    st.lists(
        st.one_of(
            st.builds(ToPort, st.integers(1, 0xFFFFFF00)),
            st.builds(ToGroup, st.integers(0, 0xFFFFFF00)),
            st.just(ToController()),
            st.builds(SetQueue, st.integers(0, 2**32 - 1)),
            st.builds(SetField, st.just("eth_dst"), MACS),
            st.builds(SetField, st.just("ip_dscp"), st.integers(0, 63)),
        ),
        max_size=3,
    ),
    st.lists(st.builds(WriteMetadata, st.integers(0, 2**64 - 1)), max_size=1),
    st.lists(st.builds(Goto, st.integers(1, 254)), max_size=1),
).map(lambda parts: tuple(action for part in parts for action in part))
RULES = st.builds(
    FlowRule,
    st.integers(0, 254),
    st.integers(0, 0xFFFF),
    FIELDS,
    ACTIONS,
    st.integers(0, 2**64 - 1),
)


@settings(max_examples=300)
@given(RULES)
def test_any_rule_of_ours_is_packed_as_os_ken_packs_it(rule: FlowRule) -> None:
    assert packing.add(rule) == messages.by_os_ken(rule)
    assert packing.remove(rule) == messages.removal_by_os_ken(rule)


def test_every_compiled_rule_takes_the_short_way() -> None:
    for program in compiler.compile(SITE, 7, PLACES, JOBS).values():
        for rule in program.rules:
            assert packing.add(rule) == messages.by_os_ken(rule)


@pytest.mark.parametrize(
    "stranger",
    [
        FlowRule(0, 1, match(ipv6_src="fe80::1", eth_type=0x86DD), (), 0),
        FlowRule(0, 1, match(eth_dst=("01:00:00:00:00:00", "01:00:00:00:00:00")), (), 0),
    ],
)
def test_a_strangers_rule_is_left_to_os_ken(stranger: FlowRule) -> None:
    assert packing.remove(stranger) is None
    (batch,) = messages.batches(FlowDiff(remove=(stranger,)))
    assert batch.data == messages.removal_by_os_ken(stranger)


def test_a_rule_read_from_a_switch_is_never_written_back() -> None:
    rule = FlowRule(0, 1, (), (Foreign("meter:1"),), 0)
    assert packing.add(rule) is None
    with pytest.raises(ValueError, match="never written back"):
        list(messages.batches(FlowDiff(add=(rule,))))


def test_a_batch_is_stamped_with_its_transaction_ids() -> None:
    groups = (GroupRule(1, (5, 6)), GroupRule(2, (7,)))
    (batch,) = messages.batches(FlowDiff(add_groups=groups))
    assert list(batch.about) == list(groups)
    data = batch.stamped([0x01020304, 0x7FFFFFFF])
    assert data[4:8] == b"\x01\x02\x03\x04"
    second = int.from_bytes(data[2:4])
    assert data[second + 4 : second + 8] == b"\x7f\xff\xff\xff"
    assert len(data) == second + int.from_bytes(data[second + 2 : second + 4])
    with pytest.raises(ValueError, match="as many transaction ids"):
        batch.stamped([1])
