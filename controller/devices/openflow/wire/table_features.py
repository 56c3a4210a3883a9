"""Table features off the wire: what a switch says of its first tables (OpenFlow 1.3.5, 7.3.5.5).

os-ken decodes every property of up to 255 tables; only a few facts of the pipeline's are wanted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

TABLES = 3
"""Tables that are decoded; of the others there is only the number."""
FIELDS: Mapping[int, str] = {
    0: "in_port",
    2: "metadata",
    3: "eth_dst",
    4: "eth_src",
    5: "eth_type",
    6: "vlan_vid",
    8: "ip_dscp",
    10: "ip_proto",
    11: "ipv4_src",
    16: "udp_dst",
    21: "arp_op",
    22: "arp_spa",
    23: "arp_tpa",
    24: "arp_sha",
}
"""The OXM fields that the pipeline matches or sets, by number."""

_HEAD = struct.Struct("!HB5x32sQQII")
_PROPERTY = struct.Struct("!HH")
_OXM = struct.Struct("!HBB")
_BASIC, _MATCH = 0x8000, 8
_OFPMP_TABLE_FEATURES = 12
_KIND_AT, _FLAGS_AT, _BODY_AT = 8, 10, 16


@dataclass(slots=True, frozen=True)
class TableFeatures:
    """What is said of one table."""

    table: int
    metadata_match: int
    metadata_write: int
    max_entries: int
    matches: frozenset[str]
    """Fields of the pipeline that it can match."""
    length: int
    """Its size in bytes."""


def features_of(body: bytes) -> Iterator[TableFeatures]:
    """Decode the body of one reply. struct.error when it is malformed."""
    at = 0
    while at < len(body):
        length, table, _, match, write, _, most = _HEAD.unpack_from(body, at)
        if length < _HEAD.size or at + length > len(body):
            raise struct.error(f"a table's features of {length} bytes")
        end = at + length
        fields = frozenset(_matches(body, at + _HEAD.size, end)) if table < TABLES else frozenset()
        yield TableFeatures(table, match, write, most, fields, length)
        at = end


def _matches(body: bytes, at: int, end: int) -> Iterator[str]:
    while at + _PROPERTY.size <= end:
        kind, length = _PROPERTY.unpack_from(body, at)
        if length < _PROPERTY.size or at + length > end:
            raise struct.error(f"a property of {length} bytes")
        if kind == _MATCH:
            for place in range(at + _PROPERTY.size, at + length - _OXM.size + 1, _OXM.size):
                oxm_class, field, _ = _OXM.unpack_from(body, place)
                if oxm_class == _BASIC and field >> 1 in FIELDS:
                    yield FIELDS[field >> 1]
        at += (length + 7) // 8 * 8


def reply_parser(reply: Any, other: Callable[..., Any]) -> Callable[..., Any]:
    """Return a parser of multipart replies that decodes table features; the rest to ``other``."""

    def parse(datapath: Any, *message: Any) -> Any:
        version, kind, length, xid, buf = message
        if int.from_bytes(buf[_KIND_AT : _KIND_AT + 2]) != _OFPMP_TABLE_FEATURES:
            return other(datapath, *message)
        msg = reply(datapath, type_=_OFPMP_TABLE_FEATURES)
        msg.set_headers(version, kind, length, xid)
        msg.set_buf(buf)
        msg.flags = int.from_bytes(buf[_FLAGS_AT : _FLAGS_AT + 2])
        msg.body = list(features_of(bytes(buf[_BODY_AT:])))
        return msg

    return parse
