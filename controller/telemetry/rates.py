"""From two readings of all port counters to bits a second, in a few array operations. Pure.

Rates use the switch's own durations: when the controller is late, its clock would lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from controller.devices.aggregators import AttachPoint
from controller.devices.counters import OFPP_MAX, RATES, WIRE, PortBlock

Floats = NDArray[np.float64]
Octets = NDArray[np.uint64]
Ports = NDArray[np.uint32]
_NONE: Floats = np.empty((0, 2))


class RateTable:
    """The ports of all aggregators, in the order they were read, and their rates."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._sizes: tuple[int, ...] = ()
        self._ports: Ports = np.empty(0, dtype=np.uint32)
        self._octets: Octets = np.empty((0, 2), dtype=np.uint64)
        self._duration: Floats = np.empty(0)
        self._index: dict[AttachPoint, int] = {}
        self.rates: Floats = _NONE
        """Per port: rx and tx in bit/s as the port sees them, NaN when not known."""
        self.layout = 0
        """Changes when positions do."""

    def update(self, blocks: Mapping[str, PortBlock]) -> None:
        """Take one reading of every aggregator that answered."""
        names = tuple(blocks)
        pieces = [block.data for block in blocks.values()]
        sizes = tuple(map(len, pieces))
        rows = np.frombuffer(b"".join(pieces), dtype=RATES)
        ports = rows["port_no"].astype(np.uint32)
        octets = rows["octets"].astype(np.uint64)
        clock = rows["clock"].astype(np.float64)
        duration = clock[:, 0] + clock[:, 1] * 1e-9
        if names == self._names and sizes == self._sizes and np.array_equal(ports, self._ports):
            self.rates = _rates(self._octets, self._duration, octets, duration)
        else:
            self._realign(names, sizes, ports, octets, duration)
        self._names, self._sizes, self._ports = names, sizes, ports
        self._octets, self._duration = octets, duration

    def position(self, point: AttachPoint) -> int:
        """Return where a port is in ``rates``, -1 when it was not read."""
        return self._index.get(point, -1)

    def points(self) -> Mapping[AttachPoint, int]:
        """Return the position of every port that was read."""
        return self._index

    def _realign(
        self,
        names: tuple[str, ...],
        sizes: tuple[int, ...],
        ports: Ports,
        octets: Octets,
        duration: Floats,
    ) -> None:
        """Aggregators or ports came or went: match those that stayed by name and number."""
        counts = [size // WIRE.itemsize for size in sizes]
        owners = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
        index = {
            AttachPoint(name, port): position
            for position, (name, port) in enumerate(zip(owners, ports.tolist(), strict=True))
            if port <= OFPP_MAX
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


def _rates(before: Octets, was: Floats, now: Octets, duration: Floats) -> Floats:
    """Bits a second of the switch's own clock; NaN after a counter reset."""
    span_s = duration - was
    # Differences of unsigned numbers wrap round: as signed ones they say what fell.
    moved = (now - before).view(np.int64)
    bad = (span_s <= 0) | (moved[:, 0] < 0) | (moved[:, 1] < 0)
    span_s[bad] = np.nan
    return moved * (8.0 / span_s)[:, None]


def total(values: Sequence[float | None]) -> float | None:
    """Return the sum of what is known, None when nothing is."""
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of what is known, None when nothing is."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
