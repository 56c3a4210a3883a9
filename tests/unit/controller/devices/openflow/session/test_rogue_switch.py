"""S9: a switch that means harm. Its session ends or waits; the honest one never notices."""

from __future__ import annotations

import asyncio
import resource
import struct
from contextlib import suppress

import pytest

from controller.devices.aggregators import AggregatorError
from controller.devices.openflow import aggregators
from controller.devices.openflow.rules.program import FlowProgram
from controller.devices.openflow.rules.rule import FlowRule, match
from controller.devices.openflow.session import conversation, osken
from controller.devices.openflow.session.osken import ofproto as ofp
from tests.parts.openflow.fake_switch import (
    FakeSwitch,
    arp_reply,
    flow_stats,
    foreign_rule,
    message,
)

FLOOD = 20_000
RSS_LIMIT_KIB = 64 * 1024


async def both(control) -> tuple[FakeSwitch, FakeSwitch]:
    good, bad = FakeSwitch(0xA0), FakeSwitch(0xA1)
    for switch in (good, bad):
        await switch.connect(control.address)
    await control.until(lambda: len(control.aggregators.connected()) == 2)
    return good, bad


async def unharmed(control) -> bool:
    return await control.aggregators.audit("as0") == []


@pytest.mark.parametrize("length", [0, 1, 7])
async def test_a_length_no_message_can_have_ends_the_session(control, length):
    _, bad = await both(control)
    bad.send(bytes([ofp.OFP_VERSION, ofp.OFPT_ECHO_REQUEST, 0, length, 0, 0, 0, 0]))
    await bad.closed()
    assert await unharmed(control)


async def test_the_greatest_length_costs_no_more_than_a_message(control):
    _, bad = await both(control)
    for _ in range(50):
        bad.send(b"\x04\x03\xff\xff\0\0\0\0" + bytes(65535 - 8))
    assert await unharmed(control)


@pytest.mark.parametrize("version", [0, 1, 3, 5, 6, 255])
async def test_another_version_after_the_handshake_ends_the_session(control, version):
    _, bad = await both(control)
    bad.send(message(ofp.OFPT_ECHO_REQUEST, version=version))
    await bad.closed()
    assert await unharmed(control)


async def test_a_hello_byte_by_byte_is_cut(control):
    """Bytes that keep coming are life, but a handshake has an end."""
    good = FakeSwitch(0xA0)
    await good.connect(control.address)
    await control.until(lambda: control.aggregators.connected() == {"as0"})
    reader, writer = await asyncio.open_connection(*control.address)
    cut = asyncio.create_task(until_hung_up(reader))
    with suppress(OSError):
        for byte in message(ofp.OFPT_HELLO) * 100:
            writer.write(bytes([byte]))
            await writer.drain()
            if cut.done():
                break
            await asyncio.sleep(0.1)
    assert cut.done()
    writer.close()
    assert await unharmed(control)


async def until_hung_up(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(1 << 16):
            pass


async def test_a_flood_of_packet_ins_takes_no_memory_and_no_turn(control):
    _, bad = await both(control)
    cable = control.site.endpoint("gpu0")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(FLOOD):
        bad.packet_in(1, arp_reply(cable.ip, cable.mac))
        if number % 1000 == 0:
            assert await unharmed(control)
    assert await unharmed(control)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < RSS_LIMIT_KIB


async def test_a_claim_to_a_known_datapath_id_gains_nothing(control):
    good, other = await both(control)
    for _ in range(20):
        thief = FakeSwitch(0xA0)
        await thief.connect(control.address)
        await thief.closed()
        assert not thief.seen[ofp.OFPT_MULTIPART_REQUEST], "it is told nothing"
    assert control.aggregators.connected() == {"as0", "as1"}, other.dpid
    assert await unharmed(control)
    assert good.seen[ofp.OFPT_FEATURES_REQUEST] == 1, "the first kept its one session"


async def test_a_flood_of_refusals_costs_no_turn_and_names_a_few(control):
    """A table that is full refuses thousands of rules at once; who asked is told of some."""
    _, bad = await both(control)
    bad.refuse = lambda rule: True
    rules = tuple(
        FlowRule(2, 200, match(eth_dst=f"02:00:00:00:{n >> 8:02x}:{n & 255:02x}"), (), 1)
        for n in range(FLOOD)
    )
    with pytest.raises(AggregatorError) as error:
        await control.aggregators.install({"as1": FlowProgram("as1", 1, rules)}, deadline_s=60)
    assert error.value.code == "failed"
    assert 0 < str(error.value).count("TABLE_FULL") <= 16
    assert await unharmed(control)


async def test_an_answer_without_end_ends_the_session(control, monkeypatch):
    monkeypatch.setattr(conversation, "ENTRIES", 1000)
    _, bad = await both(control)
    pieces = b"".join(flow_stats(*foreign_rule()) for _ in range(100))

    def endless(xid: int, what: int) -> None:
        for _ in range(50):
            body = struct.pack("!HH4x", what, 1) + pieces
            bad.send(message(ofp.OFPT_MULTIPART_REPLY, xid, body))

    bad.multipart = endless
    with pytest.raises(AggregatorError) as error:
        await control.aggregators.audit("as1")
    assert error.value.code == "unavailable"
    await bad.closed()
    assert await unharmed(control)


async def test_answers_with_unknown_transaction_ids_are_not_even_decoded(control, monkeypatch):
    _, bad = await both(control)
    decoded = []
    real = osken.ofproto_parser.msg

    def decode(session, *header):
        if session.id == bad.dpid:
            decoded.append(header[1])
        return real(session, *header)

    monkeypatch.setattr(osken.ofproto_parser, "msg", decode)
    body = struct.pack("!HH4x", ofp.OFPMP_FLOW, 0) + flow_stats(*foreign_rule()) * 500
    for xid in range(1000):
        bad.send(message(ofp.OFPT_MULTIPART_REPLY, xid, body))
        bad.send(message(ofp.OFPT_MULTIPART_REPLY, xid, b"\xff" * (xid % 5)))
        bad.send(message(ofp.OFPT_BARRIER_REPLY, xid))
    assert await control.aggregators.audit("as1") == []
    answers = [
        kind for kind in decoded if kind in (ofp.OFPT_MULTIPART_REPLY, ofp.OFPT_BARRIER_REPLY)
    ]
    assert len(answers) < 20
    assert await unharmed(control)


async def test_ports_that_are_invented_take_no_memory_and_a_storm_ends_the_session(control):
    _, bad = await both(control)
    for port in range(1, 10_000):
        bad.port_status(port, up=True)
    await bad.closed()
    assert len(control.aggregators.carrier("as1")) <= conversation.PORTS
    assert await unharmed(control)


async def test_half_a_message_waits_and_holds_no_other_up(control):
    _, bad = await both(control)
    bad.send(message(ofp.OFPT_ECHO_REQUEST, 7, bytes(1000))[:100])
    assert await unharmed(control)
    bad.send(message(ofp.OFPT_ECHO_REQUEST, 7, bytes(1000))[100:])
    assert await control.aggregators.audit("as1") == []


async def test_one_that_calls_again_and_again_is_greeted_less_and_less_often(control):
    """Every greeting reads all tables."""
    _, bad = await both(control)
    await bad.disconnect()
    begun = control.aggregators._begun
    while begun["as1"][1] < 8:  # refused while its last session is not over yet
        before = begun["as1"][1]
        await bad.connect(control.address)
        await control.until(lambda before=before: begun["as1"][1] > before or bad.has_left())
        await bad.disconnect()
    pauses = [control.aggregators._pause_s("as1") for _ in range(3)]
    assert pauses == [8, 16, aggregators.LONGEST_PAUSE_S]
    assert control.aggregators._pause_s("as0") == 0.0
    assert await unharmed(control)
