"""What is measured of a switch, against switches that answer, lie, refuse or say nothing."""

from __future__ import annotations

import struct

import pytest

from controller.devices.aggregators import AggregatorError
from controller.devices.openflow.rules import compiler
from controller.devices.openflow.session.osken import ofproto as ofp
from controller.devices.openflow.session.osken import parser
from controller.devices.openflow.wire.table_features import features_of
from tests.parts.openflow.fake_switch import FakeSwitch, message
from tests.parts.openflow.sites import attach

PLACES = attach(("gpu0", "as0", 1), ("gpu1", "as0", 2))
ALL = (1 << 64) - 1


async def joined(control, make: type[FakeSwitch] = FakeSwitch) -> FakeSwitch:
    switch = make(0xA0)
    await switch.connect(control.address)
    await control.until(lambda: control.aggregators.connected() == {"as0"})
    return switch


def description(model: str = "AS-1") -> bytes:
    texts = (("ACME", 256), (model, 256), ("1.0", 256), ("S7", 32), ("None", 256))
    return b"".join(text.encode().ljust(size, b"\0") for text, size in texts)


def features(table: int, metadata: int = ALL, entries: int = 1000) -> bytes:
    oxms = b"".join(struct.pack("!HBB", 0x8000, field << 1, 4) for field in (0, 2, 3))
    matches = struct.pack("!HH", 8, 4 + len(oxms)) + oxms
    matches = matches.ljust((len(matches) + 7) // 8 * 8, b"\0")
    head = (64 + len(matches), table, b"", metadata, metadata, 0, entries)
    return struct.pack("!HB5x32sQQII", *head) + matches


async def test_a_switch_that_takes_all_rules_is_known_in_full(control):
    switch = await joined(control)
    switch.description, switch.features = description(), b"".join(map(features, range(5)))
    profile = await control.aggregators.profile("as0")
    assert profile.model == "AS-1 1.0"
    assert (profile.tables, profile.metadata_bits, profile.barrier) == (5, 64, True)
    assert [f.table for f in profile.facts] == [0, 1, 2]
    assert profile.facts[0].matches == ("eth_dst", "in_port", "metadata")
    assert {t.outcome for t in profile.trials} == {"same"}
    assert profile.durations is True


async def test_nothing_stays_and_forwarding_goes_on_as_it_was(control):
    switch = await joined(control)
    wanted = compiler.compile(control.site, 1, PLACES, {"red": ("gpu0", "gpu1")})
    await control.aggregators.install({"as0": wanted["as0"]}, deadline_s=5)
    rules, groups = dict(switch.rules), dict(switch.groups)
    await control.aggregators.profile("as0")
    assert (switch.rules, switch.groups) == (rules, groups)
    assert await control.aggregators.audit("as0") == []
    assert not control.aggregators.lacking({"as0": wanted["as0"]})


async def test_refusals_are_facts_and_a_full_table_is_none(control):
    switch = await joined(control)
    switch.refuse = lambda rule: any(name == "arp_sha" for name, _ in rule.match)
    profile = await control.aggregators.profile("as0")
    outcomes = {trial.name: trial.outcome for trial in profile.trials}
    assert outcomes.pop("admit_arp") == "unknown", "the fake refuses with a full table"
    assert set(outcomes.values()) == {"same"}


class Far:
    """What os-ken's decoders ask of a datapath."""

    ofproto = ofp
    ofproto_parser = parser


def wide_metadata(frame: bytes) -> bool:
    mod = parser.OFPFlowMod.parser(Far, 4, ofp.OFPT_FLOW_MOD, len(frame), 0, frame)
    matched = mod.match.get("metadata", 0)
    masks = [matched[1] if isinstance(matched, tuple) else matched and ALL]
    masks += [getattr(instruction, "metadata_mask", 0) for instruction in mod.instructions]
    return max(masks) > 0xFFFF


class Narrow(FakeSwitch):
    """Refuses metadata beyond 16 bits, and says it takes 64."""

    def _flow_mod(self, frame: bytes, xid: int) -> None:
        wide = wide_metadata(frame)
        if wide and frame[25] == ofp.OFPFC_ADD:
            why = struct.pack("!HH", ofp.OFPET_BAD_INSTRUCTION, ofp.OFPBIC_UNSUP_METADATA_MASK)
            self.send(message(ofp.OFPT_ERROR, xid, why + frame[:64]))
        else:
            super()._flow_mod(frame, xid)


async def test_the_trial_finds_the_width_that_features_lie_about(control):
    switch = await joined(control, Narrow)
    switch.features = features(0)
    profile = await control.aggregators.profile("as0")
    assert profile.metadata_bits == 16
    assert profile.facts[0].metadata_write == ALL


class Forgetful(FakeSwitch):
    """Takes rules and keeps no queue in them: what is read back is altered."""

    def _flow_mod(self, frame: bytes, xid: int) -> None:
        queue = struct.pack("!HHI", ofp.OFPAT_SET_QUEUE, 8, 1)
        super()._flow_mod(frame.replace(queue, struct.pack("!HHI", ofp.OFPAT_SET_QUEUE, 8, 2)), xid)


async def test_what_is_read_back_otherwise_is_altered(control):
    switch = await joined(control, Forgetful)
    profile = await control.aggregators.profile("as0")
    assert {t.name for t in profile.trials if t.outcome == "altered"} == {"queue"}
    assert not switch.rules, "a trial that was altered is removed, too"


async def test_what_is_not_answered_is_unknown(control):
    switch = await joined(control)
    answer = switch.multipart
    switch.multipart = lambda xid, what: (
        None if what in (ofp.OFPMP_DESC, ofp.OFPMP_TABLE_FEATURES) else answer(xid, what)
    )
    switch.description = description()
    profile = await control.aggregators.profile("as0")
    assert (profile.model, profile.tables) == ("", None)
    assert profile.metadata_bits == 64


async def test_without_barriers_all_trials_are_unknown_and_the_next_reading_cleans_up(control):
    switch = await joined(control)
    switch.barriers = False
    profile = await control.aggregators.profile("as0")
    assert {t.outcome for t in profile.trials} == {"unknown"}
    assert (profile.metadata_bits, profile.barrier) == (None, None)
    switch.barriers = True
    left = compiler.compile(control.site, 1, PLACES, {})["as0"]
    await control.aggregators.install({"as0": left}, deadline_s=5)
    assert {rule for rule, _ in switch.rules.values()} == set(left.rules)


async def test_an_endless_answer_ends_in_time(control):
    switch = await joined(control)
    answer = switch.multipart

    def endless(xid: int, what: int) -> None:
        if what != ofp.OFPMP_TABLE_FEATURES:
            answer(xid, what)
            return
        piece = struct.pack("!HH4x", what, ofp.OFPMPF_REPLY_MORE) + features(0)
        for _ in range(20):
            switch.send(message(ofp.OFPT_MULTIPART_REPLY, xid, piece))

    switch.multipart = endless
    profile = await control.aggregators.profile("as0")
    assert profile.tables is None
    assert profile.metadata_bits == 64


async def test_a_lost_session_says_so(control):
    switch = await joined(control)
    await switch.disconnect()
    await control.until(lambda: not control.aggregators.connected())
    with pytest.raises(AggregatorError):
        await control.aggregators.profile("as0")


@pytest.mark.parametrize(
    "body",
    [b"\0", features(0)[:-1], b"\0\1" + features(0)[2:], features(0)[:66] + b"\0\0" + bytes(20)],
)
def test_malformed_features_are_an_error_of_the_codec(body):
    with pytest.raises(struct.error):
        list(features_of(body))
