"""The rules of the pipeline, in blocks. Pure.

``controller.devices.openflow.rules.compiler`` says which aggregator gets which.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from controller.devices.aggregators import ROCE_DSCP
from controller.devices.openflow.rules.blocks import Loose
from controller.devices.openflow.rules.rule import (
    FlowRule,
    Goto,
    Match,
    MatchValue,
    SetField,
    SetQueue,
    ToController,
    ToGroup,
    ToPort,
    WriteMetadata,
    ip_bytes,
    mac_bytes,
    match,
    pack_cookie,
)

ADMIT, NEIGHBOUR, FORWARD = 0, 1, 2

PROBE_MAC = "02:6c:6c:70:72:62"
"""Sender of the controller's ARP probes: a locally administered address that no NIC has."""

ROCE_UDP_PORT = 4791
ROCE_QUEUE = 1

_ETH_IPV4, _ETH_ARP = 0x0800, 0x0806
_ARP_REQUEST, _ARP_REPLY = 1, 2
_IP_UDP = 17
_IP_NEVER = (2, 58)
"""IGMP asks for multicast, which is not carried; ICMPv6 does not occur in IPv4. Open vSwitch cannot
change a cached decision on such a frame (ADR 0067)."""
_UNTAGGED = 0
_MISS, _RULE, _ABOVE = 0, 200, 300
_LONG, _SHORT = struct.Struct("!Q"), struct.Struct("!I")


@dataclass(slots=True, frozen=True)
class Address:
    """The endpoint of a block: its MAC and IP, and its number in cookies."""

    endpoint: str
    mac: str
    ip: str
    number: int


_SAMPLE = Address("", "52:a9:d3:6b:91:ee", "203.177.94.231", 0)
_SAMPLE_COOKIE = 0x9D3A_71C5_E2B8_4F60
_SAMPLE_TAG = 0xC7E1_5B92_8DF4_A36B
_SAMPLE_WAY = 0x5DB7_29E3
_SAMPLE_PORT = 0x6E93_B1A0
"""None of these values occurs in a message otherwise."""


def static_rules(epoch: int) -> Loose:
    """Return the rules of every aggregator.

    Default drop, no IGMP and no ICMPv6 in IPv4, and ARP replies to the forward table.
    """
    cookie = pack_cookie(epoch, 0)
    never = [
        FlowRule(ADMIT, _ABOVE, match(eth_type=_ETH_IPV4, ip_proto=number), (), cookie)
        for number in _IP_NEVER
    ]
    misses = [FlowRule(table, _MISS, (), (), cookie) for table in (ADMIT, NEIGHBOUR, FORWARD)]
    # Replies already name their receiver; the forward table knows whether it is a member.
    replies = match(eth_type=_ETH_ARP, arp_op=_ARP_REPLY)
    return Loose((*misses, *never, FlowRule(NEIGHBOUR, _RULE, replies, (Goto(FORWARD),), cookie)))


@dataclass(slots=True, frozen=True)
class Probed:
    """The rule that sends an endpoint's answer to a probe to the controller.

    No other frame is sent there.
    """

    address: Address
    port: int
    cookie: int

    @property
    def key(self) -> Hashable:
        """One per endpoint."""
        return ("probe", self.address.endpoint)

    @property
    def shape(self) -> Hashable:
        """All have the same shape."""
        return "probe"

    def same(self, other: Any) -> bool:
        """Whether the other one is at the same port."""
        return isinstance(other, Probed) and self.port == other.port

    def count(self, table: int) -> int:
        """Return 1 for the admit table."""
        return int(table == ADMIT)

    def of(self, table: int) -> tuple[FlowRule, ...]:
        """Return the rule, which is in the admit table."""
        if table != ADMIT:
            return ()
        answer = match(
            in_port=self.port,
            eth_dst=PROBE_MAC,
            eth_src=self.address.mac,
            eth_type=_ETH_ARP,
            arp_op=_ARP_REPLY,
            arp_spa=self.address.ip,
        )
        return (FlowRule(ADMIT, _ABOVE, answer, (ToController(),), self.cookie),)

    def holes(self) -> tuple[bytes, ...]:
        """Return cookie, addresses and port."""
        address = self.address
        return (
            _LONG.pack(self.cookie),
            mac_bytes(address.mac),
            ip_bytes(address.ip),
            _SHORT.pack(self.port),
        )

    def sample(self) -> Probed:
        """Return a block with unique bytes."""
        return Probed(_SAMPLE, _SAMPLE_PORT, _SAMPLE_COOKIE)


@dataclass(slots=True, frozen=True)
class MemberRules:
    """The rules of one aggregator for one member of a job.

    Its frames are admitted at ``ports``; frames to it leave by ``way``.
    """

    address: Address
    tag: int
    ports: tuple[int, ...]
    way: ToPort | ToGroup
    cookie: int
    dscp: int = ROCE_DSCP
    """Class of the member's RoCE traffic."""

    @property
    def key(self) -> Hashable:
        """One per endpoint, which has one job at a time."""
        return self.address.endpoint

    @property
    def shape(self) -> Hashable:
        """Follows from the number of ports, the kind of way and the class."""
        return (len(self.ports), type(self.way), self.dscp)

    def same(self, other: Any) -> bool:
        """Whether the other one asks for the same."""
        return (
            isinstance(other, MemberRules)
            and self.dscp == other.dscp
            and self.asks(other.tag, other.ports, other.way)
        )

    def asks(self, tag: int, ports: tuple[int, ...], way: ToPort | ToGroup) -> bool:
        """Whether the block has this tag, these ports and this way."""
        return self.tag == tag and self.ports == ports and self.way == way

    def count(self, table: int) -> int:
        """Return the number of rules in a table."""
        return 2 * len(self.ports) if table == ADMIT else int(table != ADMIT) + (table == FORWARD)

    def of(self, table: int) -> tuple[FlowRule, ...]:
        """Return the rules in a table."""
        if table == ADMIT:
            return tuple(rule for port in self.ports for rule in self._admit(port))
        return self._neighbour() if table == NEIGHBOUR else self._forward()

    def holes(self) -> tuple[bytes, ...]:
        """Return cookie, addresses, tag, way and ports."""
        address, way = self.address, self.way
        return (
            _LONG.pack(self.cookie),
            mac_bytes(address.mac),
            ip_bytes(address.ip),
            _LONG.pack(self.tag),
            _SHORT.pack(way.port if isinstance(way, ToPort) else way.group),
            *map(_SHORT.pack, self.ports),
        )

    def sample(self) -> MemberRules:
        """Return a block with unique bytes."""
        ports = tuple(_SAMPLE_PORT + n for n in range(len(self.ports)))
        way = type(self.way)(_SAMPLE_WAY)
        return MemberRules(_SAMPLE, _SAMPLE_TAG, ports, way, _SAMPLE_COOKIE, self.dscp)

    def _admit(self, port: int) -> Iterator[FlowRule]:
        mac, ip, tag = self.address.mac, self.address.ip, WriteMetadata(self.tag)
        bound: dict[str, MatchValue] = {"in_port": port, "eth_src": mac, "vlan_vid": _UNTAGGED}
        ipv4 = match(**bound, eth_type=_ETH_IPV4, ipv4_src=ip)
        yield FlowRule(ADMIT, _RULE, ipv4, (tag, Goto(FORWARD)), self.cookie)
        arp = match(**bound, eth_type=_ETH_ARP, arp_spa=ip, arp_sha=mac)
        yield FlowRule(ADMIT, _RULE, arp, (tag, Goto(NEIGHBOUR)), self.cookie)

    def _neighbour(self) -> tuple[FlowRule, ...]:
        mac, ip = self.address.mac, self.address.ip
        who_has = match(metadata=self.tag, eth_type=_ETH_ARP, arp_op=_ARP_REQUEST, arp_tpa=ip)
        actions = (SetField("eth_dst", mac), Goto(FORWARD))
        return (FlowRule(NEIGHBOUR, _RULE, who_has, actions, self.cookie),)

    def _forward(self) -> tuple[FlowRule, ...]:
        mac = self.address.mac
        plain = match(metadata=self.tag, eth_dst=mac)
        roce: Match = match(
            **dict(plain), eth_type=_ETH_IPV4, ip_proto=_IP_UDP, udp_dst=ROCE_UDP_PORT
        )
        # RoCEv2's invariant CRC masks the traffic class, so the code point may be rewritten here.
        classed = (SetField("ip_dscp", self.dscp), SetQueue(ROCE_QUEUE), self.way)
        return (
            FlowRule(FORWARD, _RULE, plain, (self.way,), self.cookie),
            FlowRule(FORWARD, _ABOVE, roce, classed, self.cookie),
        )
