"""Aggregators to test the contract on: what a southbound has to bring along, and OpenFlow's rig."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Protocol

from controller.devices.aggregators import AggregatorEvent, Aggregators, AttachPoint
from controller.devices.counters import PortCounters
from controller.devices.openflow.aggregators import OpenFlowAggregators
from controller.devices.openflow.flows import FlowKeeper
from controller.devices.openflow.rules.pipeline import PROBE_MAC
from controller.devices.openflow.rules.rule import GroupRule
from controller.devices.openflow.session.osken import ofproto as ofp
from sitefile.model import CabledSite, EndpointCable
from testbed.simulated.loop import settled
from tests.parts.openflow.fake_switch import FakeSwitch, arp_reply, foreign_rule
from tests.parts.openflow.fake_table import (
    CONTROLLER,
    FakeFabric,
    FakeTable,
    arp,
    udp,
)
from tests.parts.openflow.sites import UPLINK_BASE, make_site
from tests.parts.openflow.virtual import sessions

PATIENCE_S = 20.0
PORTS = (1, 2, 3, 4)
"""Access ports of every aggregator of a rig."""


class Rig(Protocol):
    """Aggregators ``as0`` and ``as1``, joined by an uplink, and endpoints ``gpu0`` to ``gpu5``.

    All aggregators are connected at the start of a test and forward nothing.
    """

    site: CabledSite
    aggregators: Aggregators
    events: list[AggregatorEvent]
    """What the implementation has posted."""
    light: dict[str, AttachPoint]
    """Where each endpoint's fiber really ends; a test places them."""

    def reaches(self, sender: str, receiver: str, *, posing_as: str | None = None) -> bool:
        """Whether a frame of ``sender`` to ``receiver`` comes out there, and at no other endpoint.

        ``posing_as``: the sender uses another endpoint's addresses.
        """
        ...

    def written(self, as_name: str) -> int:
        """How many changes of its tables the aggregator was told so far."""
        ...

    def counters(self, as_name: str) -> dict[int, PortCounters]:
        """What the counters of the ports really are."""
        ...

    def edit(self, as_name: str) -> None:
        """Write something into the tables that the implementation has not."""
        ...

    def wipe(self, as_name: str) -> None:
        """Empty the tables."""
        ...

    def refuse(self, as_name: str, refusing: bool) -> None:
        """Refuse every new table entry, or do so no longer."""
        ...

    def set_carrier(self, as_name: str, port: int, up: bool) -> None:
        """Let a port gain or lose its carrier."""
        ...

    async def disconnect(self, as_name: str) -> None:
        """End the session; return once the implementation knows."""
        ...

    async def reconnect(self, as_name: str) -> None:
        """Begin a session; return once the implementation calls it connected."""
        ...


async def until(condition: Callable[[], object]) -> None:
    """Wait until ``condition`` holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await settled()


class _Switch(FakeSwitch):
    """A fake switch whose endpoints answer probes through its own tables."""

    def __init__(self, dpid: int, at_port: Callable[[int], EndpointCable | None]) -> None:
        super().__init__(dpid, (*PORTS, UPLINK_BASE))
        self._at_port = at_port

    def table(self) -> FakeTable:
        """Return what the switch forwards by."""
        groups = {n: GroupRule(n, _group_ports(buckets)) for n, buckets in self.groups.items()}
        return FakeTable({key: rule for key, (rule, _) in self.rules.items()}, groups)

    def _packet_out(self, frame: bytes) -> None:
        (actions_bytes,) = struct.unpack_from("!H", frame, 16)
        (port,) = struct.unpack_from("!I", frame, 28)  # of the first action, an output
        probe = frame[24 + actions_bytes :]
        owner = self._at_port(port)
        if owner is None or probe[38:42] != IPv4Address(owner.ip).packed:
            return
        answer = arp(owner.mac, PROBE_MAC, owner.ip, "0.0.0.0", op=2)
        if any(out == CONTROLLER for out, _ in self.table().outputs(answer, port)):
            self.packet_in(port, arp_reply(owner.ip, owner.mac))


def _group_ports(buckets: bytes) -> tuple[int, ...]:
    """Return the ports of a group's buckets, each of which is one output."""
    ports, at = [], 0
    while at < len(buckets):
        (length,) = struct.unpack_from("!H", buckets, at)
        ports.append(struct.unpack_from("!I", buckets, at + 16 + 4)[0])
        at += length
    return tuple(ports)


@dataclass
class OpenFlowRig:
    """The OpenFlow southbound, with switches that exist in memory only."""

    site: CabledSite
    aggregators: Aggregators
    events: list[AggregatorEvent]
    light: dict[str, AttachPoint] = field(default_factory=dict)
    address: tuple[str, int] = ("", 0)
    switches: dict[str, _Switch] = field(default_factory=dict)

    def add_switches(self) -> None:
        """Make one switch for each aggregator of the site."""
        for cable in self.site.aggregators:

            def at_port(port: int, name: str = cable.name) -> EndpointCable | None:
                here = AttachPoint(name, port)
                found = [e for e, at in self.light.items() if at == here]
                return self.site.endpoint(found[0]) if found else None

            self.switches[cable.name] = _Switch(cable.dpid, at_port)

    def reaches(self, sender: str, receiver: str, *, posing_as: str | None = None) -> bool:
        fabric = FakeFabric(self.site, {n: s.table() for n, s in self.switches.items()})
        here = self.light[sender]
        shown, to = self.site.endpoint(posing_as or sender), self.site.endpoint(receiver)
        data = udp(shown.mac, to.mac, shown.ip, to.ip)
        who_has = arp(shown.mac, "ff:ff:ff:ff:ff:ff", shown.ip, to.ip)
        ends = [
            {(name, port) for name, port, _ in fabric.leaves(frame, here.aggregator, here.port)}
            for frame in (data, who_has)
        ]
        assert ends[0] == ends[1], "data and ARP go the same way"
        found = {e for e, at in self.light.items() if (at.aggregator, at.port) in ends[0]}
        assert found <= {receiver}, "it comes out nowhere else"
        return bool(found)

    def written(self, as_name: str) -> int:
        seen = self.switches[as_name].seen
        return seen[ofp.OFPT_FLOW_MOD] + seen[ofp.OFPT_GROUP_MOD]

    def counters(self, as_name: str) -> dict[int, PortCounters]:
        units = {port: port if port < UPLINK_BASE else 0 for port in (*PORTS, UPLINK_BASE)}
        return {p: PortCounters(1000 * n, 2000 * n, 10 * n, 20 * n, 3.5) for p, n in units.items()}

    def edit(self, as_name: str) -> None:
        rule, rest = foreign_rule()
        self.switches[as_name].rules[rule.key] = (rule, rest)

    def wipe(self, as_name: str) -> None:
        self.switches[as_name].rules.clear()
        self.switches[as_name].groups.clear()

    def refuse(self, as_name: str, refusing: bool) -> None:
        self.switches[as_name].refuse = lambda _rule: refusing

    def set_carrier(self, as_name: str, port: int, up: bool) -> None:
        self.switches[as_name].port_status(port, up=up)

    async def disconnect(self, as_name: str) -> None:
        await self.switches[as_name].disconnect()
        await until(lambda: as_name not in self.aggregators.connected())

    async def reconnect(self, as_name: str) -> None:
        await self.switches[as_name].connect(self.address)
        await until(lambda: as_name in self.aggregators.connected())


@asynccontextmanager
async def openflow() -> AsyncIterator[Rig]:
    """The OpenFlow southbound."""
    site = make_site()
    events: list[AggregatorEvent] = []
    aggregators = FlowKeeper(site, OpenFlowAggregators(site, events.append))
    rig = OpenFlowRig(site, aggregators, events)
    rig.add_switches()
    with sessions():
        rig.address = await aggregators.start()
        try:
            for name in rig.switches:
                await rig.reconnect(name)
            yield rig
        finally:
            await aggregators.stop()


RIGS: tuple[Callable[[], AbstractAsyncContextManager[Rig]], ...] = (openflow,)
"""Every southbound there is."""
