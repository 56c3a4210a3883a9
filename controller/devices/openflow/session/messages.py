"""Flow programs to OpenFlow 1.3 messages and back.

Messages are sent in batches of one kind; the caller puts a barrier after each batch, because an
aggregator may handle kinds in parallel and reject a rule whose group does not exist yet.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from controller.devices.openflow.rules.blocks import RuleSet
from controller.devices.openflow.rules.program import FlowDiff
from controller.devices.openflow.rules.rule import (
    Action,
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
from controller.devices.openflow.session.osken import OpenFlowSession, ofproto, parser
from controller.devices.openflow.wire import packing
from controller.devices.openflow.wire.blocks import Pack, packed

_ALL_METADATA = (1 << 64) - 1
_XID = struct.Struct("!I")


@dataclass(slots=True, frozen=True)
class MessageBatch:
    """Messages of one kind in one piece, with transaction id 0, and what each is about.

    A barrier must follow it.
    """

    data: bytes
    about: Sequence[FlowRule | GroupRule]

    def __len__(self) -> int:
        return len(self.about)

    def stamped(self, xids: Iterable[int]) -> bytes:
        """Return the messages, each with its transaction id."""
        out = bytearray(self.data)
        at, stamp = 0, _XID.pack_into
        for xid in xids:
            stamp(out, at + 4, xid)
            at += out[at + 2] << 8 | out[at + 3]
        if at != len(out):
            raise ValueError(f"{len(self)} messages take as many transaction ids")
        return bytes(out)


def batches(steps: FlowDiff) -> Iterator[MessageBatch]:
    """Yield the messages of ``steps`` in kind order, empty batches left out.

    Removed rules, groups, added rules (last table first), removed groups: no rule ever points at a
    group that does not exist.
    """
    if steps.remove:
        yield _rules(steps.remove, remove)
    groups = [(group, ofproto.OFPGC_ADD) for group in steps.add_groups]
    groups += [(group, ofproto.OFPGC_MODIFY) for group in steps.change_groups]
    if groups:
        data = b"".join(encoded(_group(group, command)) for group, command in groups)
        yield MessageBatch(data, [group for group, _ in groups])
    for rules in _by_table(steps.add):
        yield _rules(rules, add)
    if gone := steps.remove_groups:
        yield MessageBatch(b"".join(encoded(_group(g, ofproto.OFPGC_DELETE)) for g in gone), gone)


def _by_table(rules: Sequence[FlowRule]) -> Iterator[Sequence[FlowRule]]:
    if not isinstance(rules, RuleSet):
        for _, same in groupby(rules, key=lambda rule: rule.table):
            yield tuple(same)
        return
    for table in rules.tables:
        blocks = [block for block in rules.blocks if block.count(table)]
        if blocks:
            yield RuleSet(blocks, (table,))


def _rules(rules: Sequence[FlowRule], pack: Pack) -> MessageBatch:
    if not isinstance(rules, RuleSet):
        return MessageBatch(b"".join([pack(rule) for rule in rules]), rules)
    parts = [(block, block.holes()) for block in rules.blocks]
    data = [packed(block, table, holes, pack) for table in rules.tables for block, holes in parts]
    return MessageBatch(b"".join(data), rules)


def add(rule: FlowRule) -> bytes:
    """Return the message that adds ``rule``, with transaction id 0."""
    return packing.add(rule) or by_os_ken(rule)


def remove(rule: FlowRule) -> bytes:
    """Return the message that removes exactly ``rule``, with transaction id 0."""
    return packing.remove(rule) or removal_by_os_ken(rule)


def by_os_ken(rule: FlowRule) -> bytes:
    """Return the message that adds ``rule`` as os-ken packs it: slow, and knows every field."""
    return encoded(_add(rule))


def removal_by_os_ken(rule: FlowRule) -> bytes:
    """Return the message that removes exactly ``rule`` as os-ken packs it."""
    return encoded(_remove(rule))


class NoDatapath:
    """Stands in for the datapath that os-ken's encoders ask for."""

    ofproto = ofproto
    ofproto_parser = parser


def encoded(msg: Any) -> bytes:
    """Return a message as os-ken packs it, with transaction id 0."""
    msg.xid = 0
    msg.serialize()
    return bytes(msg.buf)


def barrier(session: OpenFlowSession) -> Any:
    """Return a barrier request."""
    return parser.OFPBarrierRequest(session)


def flows_request(session: OpenFlowSession) -> Any:
    """Ask for every rule of every table."""
    return parser.OFPFlowStatsRequest(session, table_id=ofproto.OFPTT_ALL)


def groups_request(session: OpenFlowSession) -> Any:
    """Ask for every group."""
    return parser.OFPGroupDescStatsRequest(session)


def description_request(session: OpenFlowSession) -> Any:
    """Ask what the switch is."""
    return parser.OFPDescStatsRequest(session)


def table_features_request(session: OpenFlowSession) -> Any:
    """Ask what each table takes; changes nothing."""
    return parser.OFPTableFeaturesStatsRequest(session)


def ports_request(session: OpenFlowSession) -> Any:
    """Ask for the counters of every port."""
    return parser.OFPPortStatsRequest(session)


def packet_out(session: OpenFlowSession, port: int, frame: bytes) -> Any:
    """Send ``frame`` out of ``port``, past the flow tables."""
    return parser.OFPPacketOut(
        session,
        buffer_id=ofproto.OFP_NO_BUFFER,
        in_port=ofproto.OFPP_CONTROLLER,
        actions=[parser.OFPActionOutput(port)],
        data=frame,
    )


def read_rule(stats: Any) -> FlowRule:
    """Turn one flow-stats entry into a rule."""
    actions = list(_read_instructions(stats.instructions))
    # Our entries never expire: one that can expire must be replaced.
    if stats.idle_timeout or stats.hard_timeout:
        actions.append(Foreign(f"timeouts={stats.idle_timeout}/{stats.hard_timeout}"))
    fields = match(**dict(stats.match.items()))
    return FlowRule(stats.table_id, stats.priority, fields, tuple(actions), stats.cookie)


def read_group(stats: Any) -> GroupRule:
    """Turn one group description into a group."""
    ports = []
    foreign = "" if stats.type == ofproto.OFPGT_SELECT else f" type={stats.type}"
    for bucket in stats.buckets:
        outputs = list(_read_actions(bucket.actions))
        if len(outputs) == 1 and isinstance(outputs[0], ToPort):
            ports.append(outputs[0].port)
            if bucket.watch_port != outputs[0].port:
                foreign += f" watch_port={bucket.watch_port}"
        else:
            foreign += f" bucket={','.join(map(str, outputs))}"
    return GroupRule(stats.group_id, tuple(sorted(ports)), foreign)


def _add(rule: FlowRule) -> Any:
    return parser.OFPFlowMod(
        NoDatapath,
        cookie=rule.cookie,
        table_id=rule.table,
        command=ofproto.OFPFC_ADD,
        priority=rule.priority,
        match=parser.OFPMatch(**dict(rule.match)),
        instructions=_instructions(rule.actions),
    )


def _remove(rule: FlowRule) -> Any:
    return parser.OFPFlowMod(
        NoDatapath,
        table_id=rule.table,
        command=ofproto.OFPFC_DELETE_STRICT,
        priority=rule.priority,
        out_port=ofproto.OFPP_ANY,
        out_group=ofproto.OFPG_ANY,
        match=parser.OFPMatch(**dict(rule.match)),
    )


def _group(group: GroupRule, command: int) -> Any:
    buckets = [
        parser.OFPBucket(weight=1, watch_port=port, actions=[parser.OFPActionOutput(port)])
        for port in group.ports
        if command != ofproto.OFPGC_DELETE
    ]
    return parser.OFPGroupMod(NoDatapath, command, ofproto.OFPGT_SELECT, group.group, buckets)


def _instructions(actions: Iterable[Action]) -> list[Any]:
    apply: list[Any] = []
    after: list[Any] = []
    for action in actions:
        match action:
            case WriteMetadata(value):
                after.append(parser.OFPInstructionWriteMetadata(value, _ALL_METADATA))
            case Goto(table):
                after.append(parser.OFPInstructionGotoTable(table))
            case ToPort(port):
                apply.append(parser.OFPActionOutput(port, ofproto.OFPCML_NO_BUFFER))
            case ToController():
                apply.append(
                    parser.OFPActionOutput(ofproto.OFPP_CONTROLLER, ofproto.OFPCML_NO_BUFFER)
                )
            case ToGroup(group):
                apply.append(parser.OFPActionGroup(group))
            case SetField(field, field_value):
                apply.append(parser.OFPActionSetField(**{field: field_value}))
            case SetQueue(queue):
                apply.append(parser.OFPActionSetQueue(queue))
            case Foreign(text):
                raise ValueError(f"a rule read from an aggregator is never written back: {text}")
    if apply:
        applied = parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, apply)
        return [applied, *after]
    return after


def _read_instructions(instructions: Iterable[Any]) -> Iterator[Action]:
    for instruction in sorted(instructions, key=_execution_order):
        match instruction.type:
            case ofproto.OFPIT_APPLY_ACTIONS:
                yield from _read_actions(instruction.actions)
            case ofproto.OFPIT_WRITE_METADATA if instruction.metadata_mask == _ALL_METADATA:
                yield WriteMetadata(instruction.metadata)
            case ofproto.OFPIT_GOTO_TABLE:
                yield Goto(instruction.table_id)
            case _:
                yield Foreign(str(instruction))


def _execution_order(instruction: Any) -> int:
    order = (
        ofproto.OFPIT_METER,
        ofproto.OFPIT_APPLY_ACTIONS,
        ofproto.OFPIT_CLEAR_ACTIONS,
        ofproto.OFPIT_WRITE_ACTIONS,
        ofproto.OFPIT_WRITE_METADATA,
        ofproto.OFPIT_GOTO_TABLE,
    )
    return order.index(instruction.type) if instruction.type in order else len(order)


def _read_actions(actions: Iterable[Any]) -> Iterator[Action]:
    for action in actions:
        match action.type:
            case ofproto.OFPAT_OUTPUT if action.port == ofproto.OFPP_CONTROLLER:
                yield ToController()
            case ofproto.OFPAT_OUTPUT:
                yield ToPort(action.port)
            case ofproto.OFPAT_GROUP:
                yield ToGroup(action.group_id)
            case ofproto.OFPAT_SET_QUEUE:
                yield SetQueue(action.queue_id)
            case ofproto.OFPAT_SET_FIELD:
                yield SetField(action.key, action.value)
            case _:
                yield Foreign(str(action))
