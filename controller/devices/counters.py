"""Counters of an aggregator's ports: one block of rows for all ports, as the device sent them.

A site has thousands of ports and reads them every second, so a block keeps the received bytes, and
a :class:`RowLayout` says how to read them. Each southbound defines the layout of its own messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[Any]


@dataclass(slots=True, frozen=True, eq=False)
class RowLayout:
    """How the rows of a block lie in memory; both types have the same size."""

    row: np.dtype[Any]
    """Fields ``port``, ``rx_packets``, ``tx_packets``, ``rx_bytes``, ``tx_bytes``, ``seconds``
    and ``nanoseconds`` (time of counting, by the device's clock)."""
    rates: np.dtype[Any]
    """The same bytes in fewer fields: ``port``, ``octets`` (received, sent) and ``clock``
    (seconds, nanoseconds)."""
    last_port: int
    """Ports with a higher number are internal to the device."""


ROWS = RowLayout(
    row=np.dtype(
        [
            ("port", "=u4"),
            ("rx_packets", "=u8"),
            ("tx_packets", "=u8"),
            ("rx_bytes", "=u8"),
            ("tx_bytes", "=u8"),
            ("seconds", "=u4"),
            ("nanoseconds", "=u4"),
        ]
    ),
    rates=np.dtype(
        {
            "names": ["port", "octets", "clock"],
            "formats": ["=u4", ("=u8", 2), ("=u4", 2)],
            "offsets": [0, 20, 36],
            "itemsize": 44,
        }
    ),
    last_port=2**32 - 1,
)
"""Rows of a device whose messages have no layout of their own."""


UNREPORTED_S = float(2**32 - 1)
"""A duration of all ones, like one of zero, is not measured."""


@dataclass(slots=True, frozen=True)
class PortCounters:
    """Counters of one port, for ``duration_s`` seconds by the device's clock."""

    rx_bytes: int
    tx_bytes: int
    rx_packets: int
    tx_packets: int
    duration_s: float

    @property
    def has_duration(self) -> bool:
        """Whether the device measures the duration."""
        return 0 < self.duration_s < UNREPORTED_S


class PortBlock(Mapping[int, PortCounters]):
    """The counters of one aggregator by port. ``data`` has all rows, internal ports included."""

    __slots__ = ("data", "layout")

    def __init__(self, data: bytes, layout: RowLayout = ROWS) -> None:
        self.data = data
        self.layout = layout

    @property
    def rows(self) -> Rows:
        """The rows of physical ports, in the device's order."""
        raw = np.frombuffer(self.data, dtype=self.layout.row)
        return raw[raw["port"] <= self.layout.last_port]

    @classmethod
    def made(cls, counters: Mapping[int, PortCounters]) -> PortBlock:
        """Return the block that holds ``counters``."""
        rows = np.zeros(len(counters), dtype=ROWS.row)
        for row, (port, c) in zip(rows, counters.items(), strict=True):
            row["port"] = port
            for name in ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets"):
                row[name] = getattr(c, name)
            row["seconds"] = int(c.duration_s)
            row["nanoseconds"] = round((c.duration_s - int(c.duration_s)) * 1e9)
        return cls(rows.tobytes())

    def __getitem__(self, port: int) -> PortCounters:
        rows = self.rows
        found = rows[rows["port"] == port]
        if not len(found):
            raise KeyError(port)
        row = found[0]
        return PortCounters(
            rx_bytes=int(row["rx_bytes"]),
            tx_bytes=int(row["tx_bytes"]),
            rx_packets=int(row["rx_packets"]),
            tx_packets=int(row["tx_packets"]),
            duration_s=int(row["seconds"]) + int(row["nanoseconds"]) / 1e9,
        )

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows["port"].tolist())

    def __len__(self) -> int:
        return len(self.rows)
