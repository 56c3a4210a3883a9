"""A flow table in memory: apply programs or single steps, then ask where a frame would go.

``FakeTable`` is one aggregator. ``FakeFabric`` joins tables by the site's uplinks and follows a
frame to the access ports it would leave by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from controller.devices.openflow.rules.program import FlowDiff, FlowProgram
from controller.devices.openflow.rules.rule import (
    FlowRule,
    Goto,
    GroupRule,
    RuleKey,
    SetField,
    ToController,
    ToGroup,
    ToPort,
    WriteMetadata,
)
from sitefile.model import CabledSite

Packet = Mapping[str, int | str]
Step = tuple[str, FlowRule | GroupRule]
CONTROLLER = -1


def arp(src: str, dst: str, spa: str, tpa: str, op: int = 1) -> dict[str, int | str]:
    """An ARP frame."""
    return {
        **{"eth_src": src, "eth_dst": dst, "eth_type": 0x0806, "vlan_vid": 0},
        **{"arp_op": op, "arp_spa": spa, "arp_tpa": tpa, "arp_sha": src},
    }


def udp(src: str, dst: str, ip_src: str, ip_dst: str, port: int = 5000) -> dict[str, int | str]:
    """A UDP frame."""
    return {
        **{"eth_src": src, "eth_dst": dst, "eth_type": 0x0800, "vlan_vid": 0},
        **{"ipv4_src": ip_src, "ipv4_dst": ip_dst, "ip_proto": 17, "udp_dst": port, "ip_dscp": 0},
    }


def steps_of(diff: FlowDiff) -> Iterator[Step]:
    """The steps of a diff, one message each, in the order they are sent."""
    yield from (("remove", rule) for rule in diff.remove)
    yield from (("group", group) for group in (*diff.add_groups, *diff.change_groups))
    yield from (("add", rule) for rule in diff.add)
    yield from (("ungroup", group) for group in diff.remove_groups)


@dataclass
class FakeTable:
    """The tables of one aggregator."""

    rules: dict[RuleKey, FlowRule] = field(default_factory=dict)
    groups: dict[int, GroupRule] = field(default_factory=dict)

    @classmethod
    def of(cls, program: FlowProgram) -> FakeTable:
        """Return a table that holds ``program``."""
        return cls({r.key: r for r in program.rules}, {g.group: g for g in program.groups})

    def program(self, name: str) -> FlowProgram:
        """Return what the table holds."""
        return FlowProgram(name, 0, tuple(self.rules.values()), tuple(self.groups.values()))

    def step(self, step: Step) -> None:
        """Apply one step, as strictly as a switch would."""
        match step:
            case ("remove", FlowRule() as rule):
                del self.rules[rule.key]
            case ("add", FlowRule() as rule):
                for action in rule.actions:
                    assert not isinstance(action, ToGroup) or action.group in self.groups
                self.rules[rule.key] = rule
            case ("group", GroupRule() as group):
                self.groups[group.group] = group
            case ("ungroup", GroupRule() as group):
                users = [r for r in self.rules.values() if ToGroup(group.group) in r.actions]
                assert not users, "a switch removes the rules that use a removed group"
                del self.groups[group.group]
            case _:
                raise AssertionError(step)

    def outputs(self, packet: Packet, in_port: int) -> list[tuple[int, Packet]]:
        """Return the ports (CONTROLLER for packet-in) ``packet`` may leave by, and as what.

        A SELECT group may choose any of its ports, so all are returned.
        """
        return list(self._run({**packet, "in_port": in_port, "metadata": 0}, 0))

    def _run(self, packet: dict[str, int | str], table: int) -> Iterator[tuple[int, Packet]]:
        hits = [r for r in self.rules.values() if r.table == table and _hit(r, packet)]
        if not hits:
            return
        rule = max(hits, key=lambda r: r.priority)
        rivals = [r for r in hits if r.priority == rule.priority]
        assert len(rivals) == 1, f"ambiguous: {[str(r) for r in rivals]}"
        packet = dict(packet)
        for action in rule.actions:
            match action:
                case ToPort(port):
                    yield from _leave(packet, port)
                case ToGroup(group):
                    for port in self.groups[group].ports:
                        yield from _leave(packet, port)
                case ToController():
                    yield CONTROLLER, packet
                case SetField(name, value):
                    packet[name] = value
                case WriteMetadata(value):
                    packet["metadata"] = value
                case Goto(following):
                    yield from self._run(packet, following)


def _leave(packet: Packet, port: int) -> Iterator[tuple[int, Packet]]:
    # OpenFlow 1.3.5, 7.2.5: a frame never leaves by the port it came in, unless OFPP_IN_PORT.
    if port != packet["in_port"]:
        yield port, {k: v for k, v in packet.items() if k not in {"in_port", "metadata"}}


def _hit(rule: FlowRule, packet: Packet) -> bool:
    return all(packet.get(name) == value for name, value in rule.match)


class FakeFabric:
    """Tables joined by the site's uplinks."""

    def __init__(self, site: CabledSite, tables: Mapping[str, FakeTable]) -> None:
        self.tables = tables
        self._far: dict[tuple[str, int], tuple[str, int]] = {}
        for uplink in site.uplinks:
            a = (uplink.a.device, int(uplink.a.port))
            b = (uplink.b.device, int(uplink.b.port))
            self._far |= {a: b, b: a}

    def leaves(self, packet: Packet, aggregator: str, port: int) -> list[tuple[str, int, Packet]]:
        """Return where a frame that enters at ``aggregator``/``port`` leaves the fabric."""
        ends = []
        todo = [(aggregator, port, packet)]
        for _ in range(1000):
            if not todo:
                return ends
            where, in_port, frame = todo.pop()
            for out, changed in self.tables[where].outputs(frame, in_port):
                if (where, out) in self._far:
                    todo.append((*self._far[where, out], changed))
                else:
                    ends.append((where, out, changed))
        raise AssertionError("a frame goes round in circles")
