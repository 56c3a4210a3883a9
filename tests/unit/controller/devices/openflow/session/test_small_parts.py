"""Liveness, ARP frames, limits of messages, listening sockets, peers."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.devices.aggregators import AggregatorRefused
from controller.devices.openflow.rules.pipeline import PROBE_MAC
from controller.devices.openflow.session import meter as meters
from controller.devices.openflow.session.listen import listening_socket
from controller.devices.openflow.session.liveness import (
    BARRIER_PATIENCE_S,
    SILENT_INTERVALS,
    Alive,
    Liveness,
)
from controller.devices.openflow.session.meter import Handling, Meter
from controller.devices.openflow.session.peer import (
    RECORD_BYTES,
    Certificate,
    Peer,
    is_pinned,
    pinned,
)
from controller.devices.openflow.wire import arp
from controller.reconcile.links import LinkWatch
from controller.state.events import EventLog
from sitefile.model import AggregatorCable
from tests.parts.openflow.fake_switch import arp_reply


def silence(liveness: Liveness, intervals: int, start: float = 0.0) -> list[Alive]:
    return [liveness.quiet(start + n) for n in range(1, intervals + 1)]


def test_five_silent_seconds_are_death():
    verdicts = silence(Liveness(), SILENT_INTERVALS)
    assert verdicts == [Alive.UNKNOWN] * 4 + [Alive.NO]


def test_any_byte_is_life():
    liveness = Liveness()
    silence(liveness, SILENT_INTERVALS - 1)
    liveness.heard()
    assert silence(liveness, SILENT_INTERVALS - 1) == [Alive.UNKNOWN] * 4


def test_a_barrier_protects_for_thirty_seconds():
    liveness = Liveness()
    liveness.barrier_sent(1, now=0.0)
    verdicts = silence(liveness, int(BARRIER_PATIENCE_S))
    assert verdicts == [Alive.UNKNOWN] * 29 + [Alive.NO]


def test_an_answered_barrier_protects_no_longer():
    liveness = Liveness()
    liveness.barrier_sent(1, now=0.0)
    liveness.barrier_done(1)
    assert silence(liveness, SILENT_INTERVALS)[-1] is Alive.NO


def test_probe_frame_follows_rfc_5227():
    frame = arp.probe_frame("10.77.0.1", PROBE_MAC)
    assert len(frame) == 60
    assert frame[:6] == b"\xff" * 6
    assert frame[28:32] == bytes(4)
    assert frame[38:42] == bytes([10, 77, 0, 1])


def test_arp_replies_are_read_and_nothing_else():
    reply = arp_reply("10.77.0.1", "02:00:00:00:01:01")
    assert arp.parse_reply(reply) == arp.ArpReply("10.77.0.1", "02:00:00:00:01:01")
    assert arp.parse_reply(arp.probe_frame("10.77.0.1", PROBE_MAC)) is None
    assert arp.parse_reply(reply[:30]) is None
    assert arp.parse_reply(bytes(60)) is None


def test_listening_socket_reports_what_is_wrong():
    with listening_socket("127.0.0.1:0") as taken:
        port = taken.getsockname()[1]
        assert taken.family == socket.AF_INET
        with pytest.raises(OSError, match="in use"):
            listening_socket(f"127.0.0.1:{port}")
    with pytest.raises(OSError, match="ll-t-none"):
        listening_socket("127.0.0.1:0", "ll-t-none")


def test_refusals_beyond_a_full_table_are_forgotten_until_the_next_answer():
    meter = Meter()
    verdicts = [meter.judge(meters.ERROR, asked=False, now=0.0) for _ in range(3000)]
    assert verdicts.count(Handling.DECODE) == meters.ERRORS
    assert meter.judge(meters.BARRIER_REPLY, asked=True, now=0.0) is Handling.DECODE
    assert meter.judge(meters.ERROR, asked=False, now=0.0) is Handling.DECODE


def test_unasked_answers_are_not_decoded():
    meter = Meter()
    for kind in (meters.MULTIPART_REPLY, meters.BARRIER_REPLY):
        assert meter.judge(kind, asked=False, now=0.0) is Handling.IGNORE


def test_what_a_port_says_is_never_forgotten_but_has_an_end():
    meter = Meter()
    burst = int(meters.PORT_STATUS_BURST)
    verdicts = [meter.judge(meters.PORT_STATUS, asked=False, now=0.0) for _ in range(burst + 1)]
    assert verdicts == [Handling.DECODE] * burst + [Handling.END]
    calm = Meter()
    for n in range(10 * burst):  # a hundred flaps a second, for minutes
        assert calm.judge(meters.PORT_STATUS, asked=False, now=n / 100) is Handling.DECODE


NAMES = st.lists(st.text(max_size=300) | st.from_regex(r"[a-z0-9.-]{1,300}", fullmatch=True))


@given(st.ip_addresses(), st.integers(0, 65535), NAMES, st.booleans())
def test_who_called_is_handed_over_whole_and_bounded(address, port, names, tls):
    shown = Certificate.of(tuple(names * 20), "ab" * 32) if tls else None
    peer = Peer(str(address), port, shown)
    packed = peer.pack()
    assert len(packed) < RECORD_BYTES
    assert Peer.unpack(packed) == peer
    assert len(str(peer)) < 1000


@pytest.mark.parametrize(
    ("pin", "host", "is_it"),
    [
        ("10.0.0.7", "10.0.0.7", True),
        ("10.0.0.7", "::ffff:10.0.0.7", True),
        ("10.0.0.7", "10.0.0.70", False),
        ("fe80::7", "fe80::7%eth0", True),
        ("fe80::7", "FE80:0::7", True),
        ("10.0.0.7", "", False),
    ],
)
def test_an_address_is_compared_as_an_address(pin, host, is_it):
    cable = AggregatorCable("as0", 0xA0, {}, {}, address=pin)
    assert is_pinned(cable, Peer(host, 6653)) is is_it
    assert pinned(cable) == f"address {pin}"


def test_people_are_told_of_a_claimant_once_a_minute_and_aggregator(tmp_path):
    state = SimpleNamespace(clock=lambda: now, events=EventLog(lambda: now, lambda: 1))
    watch = LinkWatch(state)
    for n in range(180):
        now = 1000.0 + n
        watch.handle(AggregatorRefused("as0", f"10.0.0.{n}:1, without TLS", "pinned to x"))
    watch.handle(AggregatorRefused("as1", "10.0.0.9:1, without TLS", "pinned to y"))
    events = state.events.since(0, 100)
    assert [e.object for e in events] == ["aggregator/as0"] * 3 + ["aggregator/as1"]
    assert events[-1].message == "refused 10.0.0.9:1, without TLS: pinned to y"
