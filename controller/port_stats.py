"""Port counters as they come off the wire, decoded in one stroke instead of port by port.

A ``OFPMP_PORT_STATS`` reply of OpenFlow 1.3 (7.3.5.6) is an array of 112-byte structs in network
byte order; numpy reads it as it lies. Blocks keep the bytes themselves: those of a whole site are
joined before they are looked at, for joining arrays of structs costs thirty times as much.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

OFPP_MAX = 0xFFFFFF00
"""Ports above this number are the switch's own."""
WIRE = np.dtype(
    [
        ("port_no", ">u4"),
        ("pad", "V4"),
        ("rx_packets", ">u8"),
        ("tx_packets", ">u8"),
        ("rx_bytes", ">u8"),
        ("tx_bytes", ">u8"),
        ("other", "V64"),
        ("duration_sec", ">u4"),
        ("duration_nsec", ">u4"),
    ]
)
"""``other``: drops, errors and collisions, which the log of the switch tells better."""
RATES = np.dtype(
    {
        "names": ["port_no", "octets", "clock"],
        "formats": [">u4", (">u8", 2), (">u4", 2)],
        "offsets": [0, 24, 104],
        "itemsize": WIRE.itemsize,
    }
)
"""What rates are made of, in the same bytes: received and sent, seconds and nanoseconds."""
Rows = NDArray[Any]
_OFPMP_PORT_STATS = 4
_PORT_STATS = _OFPMP_PORT_STATS.to_bytes(2)
_KIND_AT, _FLAGS_AT, _BODY_AT = 8, 10, 16
"""Offsets in ofp_multipart_reply (OpenFlow 1.3.5, 7.3.5)."""


@dataclass(slots=True, frozen=True)
class PortCounters:
    """Counters of one port since ``duration_s`` seconds, as the switch's own clock counts them."""

    rx_bytes: int
    tx_bytes: int
    rx_packets: int
    tx_packets: int
    duration_s: float


class WireBody:
    """What the codec makes of the body of one reply: all its ports at once."""

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
        if size % WIRE.itemsize:
            raise struct.error(f"{size} bytes are no whole number of ports")
        return cls(bytes(buf[offset:]))


def reply_parser(reply: type[Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """Return a parser of multipart replies that makes a ``reply`` of port statistics as they lie.

    Every switch sends one every second, so it is made without its ``__init__``, which takes longer
    than all the rest. What is not port statistics goes to ``other``. struct.error for a part of a
    port.
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


class PortBlock(Mapping[int, PortCounters]):
    """The counters of one aggregator by port. ``data`` has all rows, the switch's own ports too."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    @property
    def rows(self) -> Rows:
        """The rows of physical ports, in the switch's order."""
        raw = np.frombuffer(self.data, dtype=WIRE)
        return raw[raw["port_no"] <= OFPP_MAX]

    @classmethod
    def of(cls, bodies: list[WireBody]) -> PortBlock:
        """Join the pieces of one answer."""
        return cls(bodies[0].data if len(bodies) == 1 else b"".join([b.data for b in bodies]))

    @classmethod
    def made(cls, counters: Mapping[int, PortCounters]) -> PortBlock:
        """Return the block that holds ``counters``."""
        rows = np.zeros(len(counters), dtype=WIRE)
        for row, (port, c) in zip(rows, counters.items(), strict=True):
            row["port_no"] = port
            for name in ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets"):
                row[name] = getattr(c, name)
            row["duration_sec"] = int(c.duration_s)
            row["duration_nsec"] = round((c.duration_s - int(c.duration_s)) * 1e9)
        return cls(rows.tobytes())

    def __getitem__(self, port: int) -> PortCounters:
        rows = self.rows
        found = rows[rows["port_no"] == port]
        if not len(found):
            raise KeyError(port)
        row = found[0]
        return PortCounters(
            rx_bytes=int(row["rx_bytes"]),
            tx_bytes=int(row["tx_bytes"]),
            rx_packets=int(row["rx_packets"]),
            tx_packets=int(row["tx_packets"]),
            duration_s=int(row["duration_sec"]) + int(row["duration_nsec"]) / 1e9,
        )

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows["port_no"].tolist())

    def __len__(self) -> int:
        return len(self.rows)
