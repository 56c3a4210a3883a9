"""Flow programs on a real Open vSwitch: two bridges, six endpoints, one controller socket.

Needs root and Open vSwitch. Everything lives in ``ll-t-`` namespaces and is removed afterwards.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from ipaddress import IPv4Address
from pathlib import Path
from subprocess import PIPE

import pytest

from controller.devices.aggregators import (
    AggregatorConnected,
    AggregatorError,
    AggregatorRefused,
    PortStatus,
)
from controller.devices.openflow.rules.pipeline import PROBE_MAC, ROCE_UDP_PORT
from controller.devices.openflow.rules.rule import unpack_cookie
from tests.integration import openflow_control
from tests.integration.machine import run
from tests.integration.openflow_control import (
    DEADLINE_S,
    JOBS,
    PLACES,
    PORT,
    SITE,
    Control,
    programs,
)
from tests.integration.openflow_rack import OpenFlowRack, Stream, bridge, inside, netns_of
from tests.parts.openflow.fake_table import (
    CONTROLLER,
    FakeFabric,
    FakeTable,
    Packet,
    arp,
    udp,
)
from tests.parts.openflow.tls import Trust

pytestmark = pytest.mark.root

BROADCAST = "ff:ff:ff:ff:ff:ff"
MARK = b"lightloom-openflow-test"
IGMP, ICMPV6 = 2, 58
SEED = 67
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    return Trust(tmp_path_factory.mktemp("trust"))


@pytest.fixture(scope="module")
def rack(trust: Trust) -> Iterator[OpenFlowRack]:
    rack = OpenFlowRack(SITE, PLACES)
    try:
        rack.open()
        rack.point_at(PORT, trust.switch("as0", "as1"))
        yield rack
    finally:
        rack.close()


@pytest.fixture
async def control(rack: OpenFlowRack, trust: Trust) -> AsyncIterator[Control]:
    control = Control(trust.controller)
    try:
        await control.start()
        await control.aggregators.install(programs(), deadline_s=DEADLINE_S)
        yield control
    finally:
        await control.stop()


async def reaches(rack: OpenFlowRack, source: str, target: str, within_s: int = 30) -> bool:
    return await asyncio.to_thread(rack.ping, source, target, within_s=within_s)


async def test_jobs_reach_their_own_members_across_bridges_and_no_others(rack, control):
    assert await reaches(rack, "gpu0", "gpu1")
    assert await reaches(rack, "gpu0", "gpu4")
    assert await reaches(rack, "gpu3", "gpu2")
    assert not await reaches(rack, "gpu0", "gpu2", within_s=2)
    assert not await reaches(rack, "gpu4", "gpu3", within_s=2)
    assert not await reaches(rack, "gpu0", "gpu5", within_s=2)


async def test_what_was_installed_is_what_is_read(rack, control):
    for cable in SITE.aggregators:
        assert await control.aggregators.audit(cable.name) == []
    run_before = rack.ofctl("dump-flows", "as0")
    await control.aggregators.install(programs(epoch=2), deadline_s=DEADLINE_S)
    cookies = re.findall(r"cookie=(0x[0-9a-f]+)", rack.ofctl("dump-flows", "as0"))
    assert len(cookies) == len(re.findall("cookie=", run_before))
    assert {unpack_cookie(int(cookie, 16))[0] for cookie in cookies} == {1}


async def test_a_stranger_in_the_table_is_found_and_removed(rack, control):
    rack.ofctl("add-flow", "as0", "table=0,priority=999,actions=FLOOD")
    rack.ofctl("del-flows", "as0", "table=2,udp,udp_dst=4791")
    found = await control.aggregators.audit("as0")
    assert sum("priority=999" in line for line in found) == 1
    assert sum("udp_dst=4791" in line for line in found) == len(JOBS["red"]) + len(JOBS["blue"])
    await control.aggregators.install(programs(), deadline_s=DEADLINE_S)
    assert await control.aggregators.audit("as0") == []


async def test_a_rule_the_switch_refuses_is_named(rack, control):
    rack.vsctl(
        *("--", "--id=@ft", "create", "Flow_Table", "flow_limit=1", "overflow_policy=refuse"),
        *("--", "set", "bridge", bridge("as0"), "flow_tables:1=@ft"),
    )
    try:
        rack.ofctl("del-flows", "as0", "table=1")
        assert await control.aggregators.audit("as0")
        with pytest.raises(AggregatorError, match="TABLE_FULL") as caught:
            await control.aggregators.install(programs(), deadline_s=DEADLINE_S)
        assert caught.value.code == "failed"
        assert "table=1" in str(caught.value)
    finally:
        rack.vsctl("clear", "bridge", bridge("as0"), "flow_tables")
    await control.aggregators.install(programs(), deadline_s=DEADLINE_S)
    assert await control.aggregators.audit("as0") == []


async def test_probes_cross_to_every_endpoint_and_leave_no_neighbour_behind(rack, control):
    for name, at in PLACES.items():
        cable = SITE.endpoint(name)
        rtt = await control.aggregators.probe(
            at.aggregator, at.port, cable.ip, cable.mac, deadline_s=DEADLINE_S
        )
        assert rtt is not None, name
        assert PROBE_MAC not in inside(netns_of(name), "ip", "neighbour")


async def test_a_probe_gets_no_answer_at_the_wrong_port(control):
    cable = SITE.endpoint("gpu0")
    probe = control.aggregators.probe("as0", 2, cable.ip, cable.mac, deadline_s=0.6)
    assert await probe is None


async def test_held_endpoints_are_cut_off_but_can_be_probed(rack, control):
    await control.aggregators.install(programs(2, frozenset({"gpu4"})), deadline_s=DEADLINE_S)
    async with asyncio.timeout(DEADLINE_S):  # what the switch has cached goes after the barrier
        while await reaches(rack, "gpu0", "gpu4", within_s=2):
            pass
    assert not await reaches(rack, "gpu0", "gpu4", within_s=2)
    assert await reaches(rack, "gpu0", "gpu1")
    cable = SITE.endpoint("gpu4")
    probe = control.aggregators.probe("as1", 2, cable.ip, cable.mac, deadline_s=DEADLINE_S)
    assert await probe is not None
    await control.aggregators.install(programs(3), deadline_s=DEADLINE_S)
    assert await reaches(rack, "gpu0", "gpu4")


async def test_counters_count_and_port_status_follows_the_carrier(rack, control):
    before = (await control.aggregators.port_counters("as0"))[1]
    assert await reaches(rack, "gpu0", "gpu4")
    after = (await control.aggregators.port_counters("as0"))[1]
    assert after.rx_packets >= before.rx_packets + 2
    assert after.rx_bytes > before.rx_bytes
    assert after.duration_s > before.duration_s
    run("ip", "-n", netns_of("gpu0"), "link", "set", "e0", "down")
    await control.until(lambda: PortStatus("as0", 1, False) in control.events)
    assert control.aggregators.carrier("as0")[1] is False
    run("ip", "-n", netns_of("gpu0"), "link", "set", "e0", "up")
    await control.until(lambda: control.aggregators.carrier("as0")[1])


async def test_a_killed_controller_disturbs_no_traffic_and_its_successor_changes_nothing(
    rack, trust
):
    script = (sys.executable, "-m", openflow_control.__name__, str(trust.controller))
    first = await asyncio.create_subprocess_exec(*script, cwd=ROOT, stdout=PIPE)
    successor = None
    traffic = None
    try:
        async with asyncio.timeout(DEADLINE_S):
            while b"installed" not in (line := await first.stdout.readline()):
                assert line
        assert await reaches(rack, "gpu0", "gpu4")
        traffic = await Stream.begin(netns_of("gpu0"), SITE.endpoint("gpu4").ip)
        await traffic.more(50)
        first.kill()
        await first.wait()
        await traffic.more(100)
        successor = Control(trust.controller)
        await successor.start()
        await successor.aggregators.install(programs(epoch=7), deadline_s=DEADLINE_S)
        assert set(successor.events) == {AggregatorConnected("as0"), AggregatorConnected("as1")}
        for cable in SITE.aggregators:
            cookies = re.findall(r"cookie=(0x[0-9a-f]+)", rack.ofctl("dump-flows", cable.name))
            assert 7 not in {unpack_cookie(int(cookie, 16))[0] for cookie in cookies}
        await traffic.more(50)
        assert traffic.lost() == set()
    finally:
        if first.returncode is None:
            first.kill()
            await first.wait()
        if traffic is not None:
            await traffic.end()
        if successor is not None:
            await successor.stop()


async def test_a_switch_that_is_not_what_its_id_is_pinned_to_gets_nothing(rack, trust):
    """Another certificate of the same authority, then no TLS at all, then the right one."""
    control = Control(trust.controller)
    tables = {cable.name: rack.ofctl("dump-flows", cable.name) for cable in SITE.aggregators}
    rules = {name: len(re.findall("cookie=", table)) for name, table in tables.items()}
    try:
        rack.point_at(PORT, trust.switch("as8", "as9"))
        await control.aggregators.start()
        await control.until(lambda: {e.as_name for e in control.events} == {"as0", "as1"})
        for event in control.events:
            assert isinstance(event, AggregatorRefused)
            assert "as8.aggregator.lightloom" in event.claimant
            assert f"{event.as_name}.aggregator.lightloom" in event.reason
        rack.point_at(PORT)
        names = [bridge(cable.name) for cable in SITE.aggregators]
        await control.until(lambda: {connected(rack, name) for name in names} == {"false\n"})
        assert not control.aggregators.connected()
        assert {type(event) for event in control.events} == {AggregatorRefused}
        for name, count in rules.items():
            assert len(re.findall("cookie=", rack.ofctl("dump-flows", name))) == count
    finally:
        rack.point_at(PORT, trust.switch("as0", "as1"))
        await control.until(lambda: len(control.aggregators.connected()) == len(SITE.aggregators))
        await control.stop()


def connected(rack: OpenFlowRack, name: str) -> str:
    """What a bridge says of its controller."""
    return rack.vsctl("get", "controller", name, "is_connected")


def sample_frames(source: str, target: str) -> list[Packet]:
    """Honest, forged and stray frames from ``source`` towards ``target``."""
    a, b = SITE.endpoint(source), SITE.endpoint(target)
    honest = udp(a.mac, b.mac, a.ip, b.ip)
    bare = {name: value for name, value in honest.items() if name != "udp_dst"}
    return [
        honest,
        {**bare, "ip_proto": IGMP},
        {**bare, "ip_proto": ICMPV6},
        udp(a.mac, b.mac, a.ip, b.ip, ROCE_UDP_PORT),
        udp(a.mac, BROADCAST, a.ip, "10.77.0.255"),
        arp(a.mac, BROADCAST, a.ip, b.ip),
        arp(a.mac, b.mac, a.ip, b.ip, op=2),
        arp(a.mac, BROADCAST, a.ip, a.ip),
        {**honest, "eth_src": SITE.endpoint("gpu1").mac},
        {**honest, "ipv4_src": SITE.endpoint("gpu1").ip},
        {**arp(a.mac, b.mac, a.ip, b.ip, op=2), "arp_spa": SITE.endpoint("gpu2").ip},
        {**arp(a.mac, b.mac, a.ip, b.ip, op=2), "arp_sha": SITE.endpoint("gpu2").mac},
        {**honest, "vlan_vid": 0x1005},
        arp(a.mac, PROBE_MAC, a.ip, "0.0.0.0", op=2),
    ]


async def test_the_fake_table_agrees_with_the_switch_about_every_frame(rack, control):
    for source, at in PLACES.items():
        table = FakeTable.of(programs()[at.aggregator])
        for target in ("gpu1", "gpu3", "gpu4"):
            for packet in sample_frames(source, target):
                expected = {port for port, _ in table.outputs(packet, at.port)}
                assert traced(rack, at.aggregator, at.port, packet) == expected, packet


async def test_frames_on_the_wire_arrive_where_the_fake_fabric_says_and_nowhere_else(rack, control):
    tables = {name: FakeTable.of(program) for name, program in programs().items()}
    fabric = FakeFabric(SITE, tables)
    names = {(at.aggregator, at.port): name for name, at in PLACES.items()}
    expected: set[tuple[str, int]] = set()
    wires = {name: rack.wire(name) for name in PLACES}
    try:
        serial = itertools.count()
        for source, at in PLACES.items():
            for target in PLACES:
                for packet in sample_frames(source, target):
                    if packet["eth_dst"] == PROBE_MAC:
                        continue
                    number = next(serial)
                    await asyncio.to_thread(wires[source].send, frame(packet, number))
                    ends = fabric.leaves(packet, at.aggregator, at.port)
                    expected |= {(names[where, port], number) for where, port, _ in ends}
        arrived = await asyncio.to_thread(received, wires, len(expected))
    finally:
        for wire in wires.values():
            wire.close()
    assert arrived == expected
    assert len(expected) > 30


async def test_no_frame_follows_a_rule_that_is_gone(rack, control):
    """Whatever its protocol and its content: the switch forgets what it has decided on it."""
    a, b = SITE.endpoint("gpu0"), SITE.endpoint("gpu1")
    chance = random.Random(SEED)  # noqa: S311 - a lottery, not a secret
    honest = udp(a.mac, b.mac, a.ip, b.ip)
    head = mac(b.mac) + mac(a.mac) + struct.pack("!H", 0x0800)
    frames = [
        head + ipv4({**honest, "ip_proto": protocol}, chance.randbytes(40))
        for protocol in range(256)
    ]

    def cached(wire: socket.socket) -> int:
        for one in frames:
            wire.send(one)
        return len(rack.cached(PLACES["gpu1"]))

    with rack.wire("gpu0") as wire:
        async with asyncio.timeout(DEADLINE_S):
            while await asyncio.to_thread(cached, wire) < len(frames) - len((IGMP, ICMPV6)):
                pass
        await control.aggregators.install(programs(2, frozenset({"gpu1"})), deadline_s=DEADLINE_S)
        async with asyncio.timeout(DEADLINE_S):  # an entry that frames still use never expires
            while await asyncio.to_thread(cached, wire):
                pass


def traced(rack: OpenFlowRack, aggregator: str, port: int, packet: Packet) -> set[int]:
    """The ports the switch itself says the frame leaves by."""
    names = {
        **{"ipv4_src": "nw_src", "ipv4_dst": "nw_dst", "ip_proto": "nw_proto"},
        **{"vlan_vid": "vlan_tci", "ip_dscp": "nw_tos"},
    }
    fields = {names.get(name, name): value for name, value in packet.items()}
    if not fields["vlan_tci"]:
        del fields["vlan_tci"]
    flow = ",".join(f"{name}={value}" for name, value in {"in_port": port, **fields}.items())
    text = rack.appctl("ofproto/trace", bridge(aggregator), flow)
    ports = set(map(int, re.findall(r"^\s+output:(\d+)\n(?!\s+>> skipping)", text, re.MULTILINE)))
    # The bucket is chosen by a hash over the frame in a second pass, which a trace does not follow.
    described = rack.ofctl("dump-groups", aggregator)
    for group in re.findall(r"^\s+group:(\d+)", text, re.MULTILINE):
        (line,) = re.findall(rf"group_id={group},.*", described)
        ports |= set(map(int, re.findall(r"output:(\d+)", line)))
    return ports | ({CONTROLLER} if "CONTROLLER" in text else set())


def frame(packet: Packet, number: int) -> bytes:
    """A frame with a serial number in its payload."""
    tag = struct.pack("!HH", 0x8100, int(packet["vlan_vid"]) & 0xFFF) if packet["vlan_vid"] else b""
    kind = int(packet["eth_type"])
    head = mac(packet["eth_dst"]) + mac(packet["eth_src"]) + tag + struct.pack("!H", kind)
    mark = MARK + struct.pack("!I", number)
    if kind == 0x0806:
        op = int(packet["arp_op"])
        sender = mac(packet["arp_sha"]) + ip(packet["arp_spa"])
        return (
            head
            + struct.pack("!HHBBH", 1, 0x0800, 6, 4, op)
            + sender
            + bytes(6)
            + ip(packet["arp_tpa"])
            + mark
        )
    datagram = struct.pack("!HHHH", 9, int(packet.get("udp_dst", 9)), 8 + len(mark), 0) + mark
    return head + ipv4(packet, datagram)


def ipv4(packet: Packet, content: bytes) -> bytes:
    addresses = ip(packet["ipv4_src"]) + ip(packet["ipv4_dst"])
    protocol, length = int(packet["ip_proto"]), 20 + len(content)
    fields = struct.pack("!BBHHHBBH", 0x45, 0, length, 0, 0, 64, protocol, 0) + addresses
    words = struct.unpack("!10H", fields)
    total = sum(words)
    total = (total & 0xFFFF) + (total >> 16)
    return fields[:10] + struct.pack("!H", ~total & 0xFFFF) + fields[12:] + content


def mac(text: int | str) -> bytes:
    return bytes.fromhex(str(text).replace(":", ""))


def ip(text: int | str) -> bytes:
    return IPv4Address(text).packed


def received(wires: Mapping[str, socket.socket], count: int) -> set[tuple[str, int]]:
    """Endpoint and serial number of every marked frame that came in.

    Waits for ``count`` of them, and then a little longer for any that should not come.
    """
    found: set[tuple[str, int]] = set()
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        fresh = {(name, number) for name, wire in wires.items() for number in marked(wire)}
        if len(found) >= count and not fresh:
            break
        found |= fresh
        time.sleep(0.3)
    return found


def marked(wire: socket.socket) -> Iterator[int]:
    """Serial numbers of the marked frames waiting at ``wire``, less those it sent itself."""
    wire.setblocking(False)
    while True:
        try:
            data, (_, _, direction, *_) = wire.recvfrom(2048)
        except BlockingIOError:
            return
        # Kernels answer stray UDP with ICMP errors that quote the frame.
        icmp = data[12:14] == b"\x08\x00" and data[23] == 1
        if direction != socket.PACKET_OUTGOING and MARK in data and not icmp:
            start = data.index(MARK) + len(MARK)
            yield struct.unpack_from("!I", data, start)[0]
