"""S9: a switch that means harm. Its session ends or waits; the honest one never notices."""

from __future__ import annotations

import asyncio
import resource
from contextlib import suppress

import pytest

from controller import ofkit
from controller.ofkit import ofproto as ofp
from tests.unit.openflow.fakeswitch import FakeSwitch, arp_reply, message

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


async def test_a_hello_byte_by_byte_is_cut(control, monkeypatch):
    """Bytes that keep coming are life, but a handshake has an end."""
    good = FakeSwitch(0xA0)
    await good.connect(control.address)
    await control.until(lambda: control.aggregators.connected() == {"as0"})
    monkeypatch.setattr(ofkit, "HANDSHAKE_LIMIT_S", 0.3)  # its own handshake has all its time
    reader, writer = await asyncio.open_connection(*control.address)
    cut = asyncio.create_task(until_hung_up(reader))
    with suppress(OSError):
        for byte in message(ofp.OFPT_HELLO) * 100:
            writer.write(bytes([byte]))
            await writer.drain()
            if cut.done():
                break
            await asyncio.sleep(0.02)
    await asyncio.wait_for(cut, 10)
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
