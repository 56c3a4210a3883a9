"""Port counters off the wire, decoded all at once instead of port by port.

A ``OFPMP_PORT_STATS`` reply of OpenFlow 1.3 (7.3.5.6) is an array of 112-byte structs in network
byte order; numpy reads it in place. Blocks keep the bytes: those of a whole site are joined before
they are decoded, because joining arrays of structs costs thirty times as much.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from controller.devices.counters import PortBlock, RowLayout

_ROW = np.dtype(
    [
        ("port", ">u4"),
        ("pad", "V4"),
        ("rx_packets", ">u8"),
        ("tx_packets", ">u8"),
        ("rx_bytes", ">u8"),
        ("tx_bytes", ">u8"),
        ("other", "V64"),
        ("seconds", ">u4"),
        ("nanoseconds", ">u4"),
    ]
)
"""``ofp_port_stats``; ``other``: drops, errors and collisions, which the aggregator logs."""
WIRE = RowLayout(
    row=_ROW,
    rates=np.dtype(
        {
            "names": ["port", "octets", "clock"],
            "formats": [">u4", (">u8", 2), (">u4", 2)],
            "offsets": [0, 24, 104],
            "itemsize": _ROW.itemsize,
        }
    ),
    last_port=0xFFFFFF00,  # OFPP_MAX
)

_OFPMP_PORT_STATS = 4
_PORT_STATS = _OFPMP_PORT_STATS.to_bytes(2)
_KIND_AT, _FLAGS_AT, _BODY_AT = 8, 10, 16
"""Offsets in ofp_multipart_reply (OpenFlow 1.3.5, 7.3.5)."""


class WireBody:
    """The decoded body of one reply: all its ports at once."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    @property
    def length(self) -> int:
        """Its size in bytes."""
        return len(self.data)

    @classmethod
    def parser(cls, buf: bytes, offset: int) -> WireBody:
        """Take everything from ``offset`` on. struct.error for a part of a port."""
        size = len(buf) - offset
        if size % _ROW.itemsize:
            raise struct.error(f"{size} bytes are not a whole number of ports")
        return cls(bytes(buf[offset:]))


def reply_parser(reply: type[Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """Return a parser of multipart replies that keeps the bytes of port statistics in ``reply``.

    Every aggregator sends one every second, so it is made without its ``__init__``, which takes
    longer than all the rest. Other replies go to ``other``. struct.error for a part of a port.
    """

    def parse(datapath: Any, *message: Any) -> Any:
        version, kind, length, xid, buf = message
        if buf[_KIND_AT : _KIND_AT + 2] != _PORT_STATS:
            return other(datapath, *message)
        msg: Any = object.__new__(reply)
        msg.datapath, msg.version, msg.msg_type, msg.msg_len = datapath, version, kind, length
        msg.xid, msg.buf = xid, buf
        msg.type, msg.flags = _OFPMP_PORT_STATS, int.from_bytes(buf[_FLAGS_AT : _FLAGS_AT + 2])
        msg.body = [WireBody.parser(buf, _BODY_AT)]
        return msg

    return parse


def block_of(bodies: list[WireBody]) -> PortBlock:
    """Join the pieces of one answer."""
    data = bodies[0].data if len(bodies) == 1 else b"".join([body.data for body in bodies])
    return PortBlock(data, WIRE)
