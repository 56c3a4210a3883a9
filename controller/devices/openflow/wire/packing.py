"""Our own flow rules as OpenFlow 1.3 bytes, packed directly. Pure.

os-ken builds a tree of objects for every message, a hundred microseconds each; a regroup of a big
site changes thousands of rules while jobs stand still. Here a rule's match is one ``struct`` call
whose format follows from the names of its fields, and instructions are packed once and
remembered. For rules that we never write (a foreign rule to remove, with masks or with fields that
are unknown here) the result is ``None``: ``session.messages`` leaves them to os-ken. The bytes
equal os-ken's, field for field: ``tests/unit/controller/devices/openflow/wire/test_packing.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from controller.devices.openflow.rules.rule import (
    Action,
    FlowRule,
    Foreign,
    Goto,
    MatchValue,
    SetField,
    SetQueue,
    ToController,
    ToGroup,
    ToPort,
    WriteMetadata,
    ip_bytes,
    mac_bytes,
)

_VERSION, _FLOW_MOD = 4, 14
_ADD, _DELETE_STRICT = 0, 4
_ANY = 0xFFFFFFFF
"""OFPP_ANY, OFPG_ANY and OFP_NO_BUFFER."""
_CONTROLLER = 0xFFFFFFFD
_NO_BUFFER_LEN = 0xFFFF
_ALL_METADATA = (1 << 64) - 1
_OXM_MATCH = 1
_HEAD = struct.Struct("!BBHIQQBBHHHIIIH2x")
"""ofp_flow_mod (OpenFlow 1.3.5, A.3.4.1) up to its match."""
_APPLY = struct.Struct("!HH4x")
_METADATA = struct.Struct("!HH4xQQ")
_GOTO = struct.Struct("!HHB3x")
_OUTPUT = struct.Struct("!HHIH6x")
_SHORT = struct.Struct("!HHI")
_CACHED = 1 << 17


class _UnknownError(Exception):
    """A rule that we never write."""


def _number(value: Any) -> Any:
    return value


_FIELDS: dict[str, tuple[int, str, int, Callable[[Any], Any]]] = {
    "in_port": (0, "I", 4, _number),
    "metadata": (2, "Q", 8, _number),
    "eth_dst": (3, "6s", 6, mac_bytes),
    "eth_src": (4, "6s", 6, mac_bytes),
    "eth_type": (5, "H", 2, _number),
    "vlan_vid": (6, "H", 2, _number),
    "ip_dscp": (8, "B", 1, _number),
    "ip_proto": (10, "B", 1, _number),
    "ipv4_src": (11, "4s", 4, ip_bytes),
    "ipv4_dst": (12, "4s", 4, ip_bytes),
    "udp_dst": (16, "H", 2, _number),
    "arp_op": (21, "H", 2, _number),
    "arp_spa": (22, "4s", 4, ip_bytes),
    "arp_tpa": (23, "4s", 4, ip_bytes),
    "arp_sha": (24, "6s", 6, mac_bytes),
}
"""OXM number, ``struct`` code, length and converter of the fields that we match or set."""


def _oxm_head(number: int, length: int) -> int:
    return 0x8000 << 16 | number << 9 | length


class _Shape:
    """How to pack every match on the same fields."""

    def __init__(self, names: tuple[str, ...]) -> None:
        if not set(names) <= _FIELDS.keys():
            raise _UnknownError
        order = sorted(range(len(names)), key=lambda i: _FIELDS[names[i]][0])
        known = [_FIELDS[names[i]] for i in order]
        size = 4 + sum(4 + length for _, _, length, _ in known)
        codes = "".join(f"I{code}" for _, code, _, _ in known)
        self._struct = struct.Struct(f"!HH{codes}{-size % 8}x")
        self._size = size
        self._parts = tuple(
            (i, _oxm_head(number, length), convert)
            for i, (number, _, length, convert) in zip(order, known, strict=True)
        )

    def pack(self, values: tuple[tuple[str, MatchValue], ...]) -> bytes:
        """Return ``ofp_match``, padded."""
        arguments: list[Any] = [_OXM_MATCH, self._size]
        for i, head, convert in self._parts:
            arguments.append(head)
            arguments.append(convert(values[i][1]))
        return self._struct.pack(*arguments)


@lru_cache(maxsize=256)
def _shape(names: tuple[str, ...]) -> _Shape:
    return _Shape(names)


@lru_cache(_CACHED)
def _instructions(actions: tuple[Action, ...]) -> bytes:
    applied, after = b"", b""
    for action in actions:
        match action:
            case ToPort(port):
                applied += _OUTPUT.pack(0, 16, port, _NO_BUFFER_LEN)
            case ToController():
                applied += _OUTPUT.pack(0, 16, _CONTROLLER, _NO_BUFFER_LEN)
            case ToGroup(group):
                applied += _SHORT.pack(22, 8, group)
            case SetQueue(queue):
                applied += _SHORT.pack(21, 8, queue)
            case SetField(name, value):
                applied += _set_field(name, value)
            case WriteMetadata(value):
                after += _METADATA.pack(2, 24, value, _ALL_METADATA)
            case Goto(table):
                after += _GOTO.pack(1, 8, table)
            case Foreign():
                raise _UnknownError
    return (_APPLY.pack(4, 8 + len(applied)) + applied if applied else b"") + after


def _set_field(name: str, value: int | str) -> bytes:
    if name not in _FIELDS:
        raise _UnknownError
    number, code, length, convert = _FIELDS[name]
    size = 4 + 4 + length
    head = struct.pack(
        f"!HHI{code}", 25, size + -size % 8, _oxm_head(number, length), convert(value)
    )
    return head + bytes(-size % 8)


def add(rule: FlowRule) -> bytes | None:
    """Return the message that adds ``rule``, with transaction id 0; None when os-ken must."""
    try:
        body = _match(rule) + _instructions(rule.actions)
    except _UnknownError:
        return None
    return (
        _HEAD.pack(
            *(_VERSION, _FLOW_MOD, _HEAD.size + len(body), 0, rule.cookie, 0, rule.table, _ADD),
            *(0, 0, rule.priority, _ANY, 0, 0, 0),
        )
        + body
    )


def remove(rule: FlowRule) -> bytes | None:
    """Return the message that removes exactly ``rule``; None when os-ken must."""
    try:
        body = _match(rule)
    except _UnknownError:
        return None
    return (
        _HEAD.pack(
            *(_VERSION, _FLOW_MOD, _HEAD.size + len(body), 0, 0, 0, rule.table, _DELETE_STRICT),
            *(0, 0, rule.priority, _ANY, _ANY, _ANY, 0),
        )
        + body
    )


def _match(rule: FlowRule) -> bytes:
    fields = rule.match
    if any(isinstance(value, tuple) for _, value in fields):  # a mask
        raise _UnknownError
    return _shape(tuple([name for name, _ in fields])).pack(fields)
