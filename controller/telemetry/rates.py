"""Computes bit/s from two readings of all port counters, in a few array operations. Pure.

Rates use the aggregators' own clocks, because a reading by the controller can be late. Some
switches do not report how long a port has counted (Dell MX9116n: "Not supported"): there the
controller's clock is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from controller.devices.aggregators import AttachPoint
from controller.devices.counters import UNREPORTED_S, PortBlock, RowLayout, Rows

Floats = NDArray[np.float64]
Octets = NDArray[np.uint64]
Ports = NDArray[np.uint32]
_NONE: Floats = np.empty((0, 2))


class RateTable:
    """The ports of all aggregators, in the order of reading, and their rates."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._layouts: list[RowLayout] = []
        self._sizes: list[int] = []
        """Of each aggregator's block; sizes in bytes."""
        self._ports: Ports = np.empty(0, dtype=np.uint32)
        self._octets: Octets = np.empty((0, 2), dtype=np.uint64)
        self._duration: Floats = np.empty(0)
        self._index: dict[AttachPoint, int] = {}
        self.rates: Floats = _NONE
        """Per port: rx and tx in bit/s from the port's side, NaN if not known."""
        self.layout = 0
        """Number of changes of the positions so far."""

    def update(self, blocks: Mapping[str, PortBlock], now: float) -> None:
        """Compute the rates from a new reading of the aggregators that answered.

        ``now`` is the controller's monotonic time in seconds.
        """
        names = tuple(blocks)
        pieces = [block.data for block in blocks.values()]
        layouts = [block.layout for block in blocks.values()]
        sizes = list(map(len, pieces))
        ports, octets, duration = _columns(pieces, layouts)
        duration[(duration == 0) | (duration >= UNREPORTED_S)] = now
        known = names == self._names and sizes == self._sizes and layouts == self._layouts
        if known and np.array_equal(ports, self._ports):
            self.rates = _rates(self._octets, self._duration, octets, duration)
        else:
            self._realign(blocks, ports, octets, duration)
        self._names, self._ports = names, ports
        self._layouts, self._sizes = layouts, sizes
        self._octets, self._duration = octets, duration

    def position(self, point: AttachPoint) -> int:
        """Return a port's position in ``rates``, -1 if it was not read."""
        return self._index.get(point, -1)

    def points(self) -> Mapping[AttachPoint, int]:
        """Return the position of every port that was read."""
        return self._index

    def _realign(
        self, blocks: Mapping[str, PortBlock], ports: Ports, octets: Octets, duration: Floats
    ) -> None:
        """Aggregators or ports were added or removed: match the others by name and number."""
        owners = [
            (name, block.layout.last_port)
            for name, block in blocks.items()
            for _ in range(len(block.data) // block.layout.row.itemsize)
        ]
        index = {
            AttachPoint(name, port): position
            for position, ((name, last), port) in enumerate(
                zip(owners, ports.tolist(), strict=True)
            )
            if port <= last
        }
        rates = np.full((len(ports), 2), np.nan)
        kept = [(now, was) for p, now in index.items() if (was := self._index.get(p)) is not None]
        if kept:
            now_at, was_at = (np.array(side) for side in zip(*kept, strict=True))
            rates[now_at] = _rates(
                self._octets[was_at], self._duration[was_at], octets[now_at], duration[now_at]
            )
        self._index, self.rates = index, rates
        self.layout += 1


def _columns(pieces: list[bytes], layouts: list[RowLayout]) -> tuple[Ports, Octets, Floats]:
    """Return ports, received and sent octets, and seconds of all rows.

    Consecutive pieces of one layout are joined as bytes: joining arrays costs thirty times as much.
    """
    if layouts and layouts.count(layouts[0]) == len(layouts):  # as on most sites
        rows = np.frombuffer(b"".join(pieces), dtype=layouts[0].rates)
        return _ports(rows), _octets(rows), _seconds(rows)
    read = [
        np.frombuffer(b"".join([piece for piece, _ in alike]), dtype=layout.rates)
        for layout, alike in groupby(zip(pieces, layouts, strict=True), key=itemgetter(1))
    ]
    return (
        np.concatenate([np.empty(0, np.uint32), *(_ports(rows) for rows in read)]),
        np.concatenate([np.empty((0, 2), np.uint64), *(_octets(rows) for rows in read)]),
        np.concatenate([np.empty(0), *(_seconds(rows) for rows in read)]),
    )


def _ports(rows: Rows) -> Ports:
    return rows["port"].astype(np.uint32)


def _octets(rows: Rows) -> Octets:
    return rows["octets"].astype(np.uint64)


def _seconds(rows: Rows) -> Floats:
    clock = rows["clock"].astype(np.float64)
    seconds: Floats = clock[:, 0] + clock[:, 1] * 1e-9
    return seconds


def _rates(before: Octets, was: Floats, now: Octets, duration: Floats) -> Floats:
    """Return bit/s by the clock of the durations; NaN after a counter reset."""
    span_s = duration - was
    # Differences of unsigned numbers wrap around; read as signed, a counter that fell is negative.
    moved = (now - before).view(np.int64)
    bad = (span_s <= 0) | (moved[:, 0] < 0) | (moved[:, 1] < 0)
    span_s[bad] = np.nan
    return moved * (8.0 / span_s)[:, None]


def total(values: Sequence[float | None]) -> float | None:
    """Return the sum of the known values, None without any."""
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the known values, None without any."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
