"""Counters of an aggregator's ports: one block of rows for all ports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.devices.openflow.wire.port_stats import WireBody

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


@dataclass(slots=True, frozen=True)
class PortCounters:
    """Counters of one port since ``duration_s`` seconds, as the switch's own clock counts them."""

    rx_bytes: int
    tx_bytes: int
    rx_packets: int
    tx_packets: int
    duration_s: float


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
