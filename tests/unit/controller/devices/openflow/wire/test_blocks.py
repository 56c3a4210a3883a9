"""Blocks of rules are packed as their rules would be, one by one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.devices.openflow.rules import compiler
from controller.devices.openflow.rules.blocks import TABLES, RuleBlock, RuleSet
from controller.devices.openflow.rules.pipeline import Address, MemberRules, Probed, static_rules
from controller.devices.openflow.rules.program import FlowDiff, FlowProgram, diff
from controller.devices.openflow.rules.rule import ToGroup, ToPort
from controller.devices.openflow.session import messages
from tests.parts.openflow.sites import attach, make_site

MACS = st.binary(min_size=6, max_size=6).map(lambda raw: raw.hex(":"))
IPS = st.binary(min_size=4, max_size=4).map(lambda raw: ".".join(map(str, raw)))
COOKIES = st.integers(0, 2**64 - 1)
PORTS = st.integers(0, 0xFFFFFF00)
ADDRESSES = st.builds(Address, st.just("gpu0"), MACS, IPS, st.just(1))
BLOCKS = st.one_of(
    st.builds(
        MemberRules,
        ADDRESSES,
        st.integers(0, 2**64 - 1),
        st.lists(PORTS, min_size=1, max_size=5).map(tuple),
        st.one_of(st.builds(ToPort, PORTS), st.builds(ToGroup, PORTS)),
        COOKIES,
        st.integers(0, 63),
    ),
    st.builds(Probed, ADDRESSES, PORTS, COOKIES),
    st.builds(static_rules, st.integers(0, 2**40 - 2)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(BLOCKS, max_size=4))
def test_any_blocks_are_packed_as_os_ken_packs_their_rules(blocks: list[RuleBlock]) -> None:
    """Also where a percent sign, or what the templates were learned from, is in the values."""
    steps = FlowDiff(remove=RuleSet(blocks), add=RuleSet(blocks, TABLES[::-1]))
    theirs = [messages.removal_by_os_ken(rule) for rule in steps.remove]
    theirs += [messages.by_os_ken(rule) for rule in steps.add]
    assert b"".join(batch.data for batch in messages.batches(steps)) == b"".join(theirs)


def test_the_bytes_that_templates_are_learned_from_are_packed_like_others() -> None:
    for block in (
        MemberRules(Address("gpu0", "02:00:00:00:00:25", "10.0.0.37", 1), 7, (1, 2), ToGroup(3), 9),
        Probed(Address("gpu0", "02:00:00:00:00:25", "10.0.0.37", 1), 4, 5),
    ):
        for known in (block, block.sample()):
            rules = RuleSet((known,))
            (batch,) = messages.batches(FlowDiff(remove=rules))
            assert batch.data == b"".join(messages.removal_by_os_ken(r) for r in rules)


def test_every_message_is_about_its_rule() -> None:
    site = make_site()
    places = attach(("gpu0", "as0", 1), ("gpu1", "as0", 2), ("gpu2", "as1", 1))
    program = compiler.compile(site, 1, places, {"red": ("gpu0", "gpu1", "gpu2")})["as0"]
    steps = diff(FlowProgram("as0", 0, RuleSet(())), program)
    rules = []
    for batch in messages.batches(steps):
        if isinstance(batch.about, RuleSet):
            rules += list(batch.about)
            data = b"".join(messages.by_os_ken(rule) for rule in batch.about)
            assert batch.data == data
    assert set(rules) == set(program.rules)
    assert [rule.table for rule in rules] == sorted((r.table for r in rules), reverse=True)
