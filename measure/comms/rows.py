"""Tables of calls: of a rank, of a job, and of a time that has passed.

Bus bandwidth is nccl-tests' (doc/PERFORMANCE.md): S / t times what a ring moves of S per rank.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, cast

from measure.comms.recorded import CallSource, CommOperation, Timing

Key = tuple[str, int, str, str, CallSource, Timing]
"""Operation, bytes, type, tag, source and timing."""

_BIN = struct.Struct("<BQ")
_MOST_IN_BIN = 2**64 - 1
_FACTORS: Mapping[str, int] = {
    "all_reduce": 2,
    "all_gather": 1,
    "reduce_scatter": 1,
    "alltoall": 1,
}
"""a of a (n - 1) / n; 1 for all others."""


def factor(op: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth, nccl-tests' correction factor."""
    if op not in _FACTORS or ranks < 2:
        return 1.0
    return _FACTORS[op] * (ranks - 1) / ranks


def key_of(operation: CommOperation) -> Key:
    """Return what distinguishes rows."""
    return (
        operation.op,
        operation.bytes,
        operation.dtype,
        operation.tag,
        operation.source,
        operation.timing,
    )


@dataclass(slots=True, frozen=True)
class Sums:
    """Sums over calls of one kind.

    ``bins`` has the histogram's bins that are not empty, packed: a job has millions of them.
    """

    calls: int
    total_s: float
    min_s: float
    max_s: float
    bins: bytes
    exact: bool = True

    @classmethod
    def of(cls, operation: CommOperation) -> Self:
        """Return the sums of a recorded operation."""
        bins = _packed((i, count) for i, count in enumerate(operation.histogram) if count)
        return cls(
            operation.calls,
            operation.total_s,
            operation.min_s,
            operation.max_s,
            bins,
            operation.exact,
        )

    @property
    def timed(self) -> int:
        """Calls whose duration is known."""
        return sum(count for _, count in _unpacked(self.bins))

    @property
    def avg_s(self) -> float:
        """The mean duration; 0 where no duration is known."""
        known = self.calls if not self.exact else self.timed
        return self.total_s / known if known else 0.0

    @property
    def p50_s(self) -> float | None:
        """The middle of the median's bin, which is 19 % wide."""
        left = self.timed / 2
        for position, count in _unpacked(self.bins):
            left -= count
            if left <= 0:
                return _edge(position + 0.5)
        return None

    def since(self, before: Sums | None) -> Sums:
        """Return the sums of later calls only. Shortest and longest are known to their bins."""
        if before is None or before.calls > self.calls:
            return self
        old = dict(_unpacked(before.bins))
        bins = [(i, n - old.get(i, 0)) for i, n in _unpacked(self.bins) if n > old.get(i, 0)]
        low, high = (_edge(bins[0][0]), _edge(bins[-1][0] + 1)) if bins else (0.0, 0.0)
        return replace(
            self,
            calls=self.calls - before.calls,
            total_s=max(0.0, self.total_s - before.total_s),
            min_s=max(self.min_s, low),
            max_s=min(self.max_s, high),
            bins=_packed(bins),
        )


def _packed(bins: Iterable[tuple[int, int]]) -> bytes:
    return b"".join(_BIN.pack(i, min(count, _MOST_IN_BIN)) for i, count in bins)


def _unpacked(bins: bytes) -> Iterator[tuple[int, int]]:
    return cast("Iterator[tuple[int, int]]", _BIN.iter_unpack(bins))


def added(sums: Iterable[Sums]) -> Sums:
    """Return the sum of several; zero calls for an empty sequence."""
    calls, total, bins, exact = 0, 0.0, dict[int, int](), True
    least, most = [], []
    for one in sums:
        calls, total, exact = calls + one.calls, total + one.total_s, exact and one.exact
        for position, count in _unpacked(one.bins):
            bins[position] = bins.get(position, 0) + count
        if one.bins:
            least.append(one.min_s)
            most.append(one.max_s)
    kept = _packed(sorted(bins.items()))
    return Sums(calls, total, min(least, default=0.0), max(most, default=0.0), kept, exact)


def table(operations: Iterable[CommOperation]) -> dict[Key, Sums]:
    """Return the sums of a rank's operations by what distinguishes them."""
    found: dict[Key, Sums] = {}
    for operation in operations:
        key, sums = key_of(operation), Sums.of(operation)
        found[key] = added((found[key], sums)) if key in found else sums
    return found


@dataclass(slots=True, frozen=True, kw_only=True)
class Row:
    """One row: of a rank, or of a job with ``rank`` None. Bandwidth is bytes/s."""

    key: Key
    rank: int | None
    sums: Sums
    """For a job, over its ranks."""
    avg_s: float
    """For a job, the largest of a rank."""
    longest_s: float
    """The largest time of one rank in these calls."""
    busbw: float | None


def rank_rows(rank: int, sums: Mapping[Key, Sums], ranks: int) -> list[Row]:
    """Return the rows of one rank of a job of ``ranks``, by total time."""
    rows = [
        Row(
            key=key,
            rank=rank,
            sums=one,
            avg_s=one.avg_s,
            longest_s=one.total_s,
            busbw=_busbw(key, one.avg_s, ranks),
        )
        for key, one in sums.items()
        if one.calls
    ]
    return sorted(rows, key=_order)


def job_rows(of_ranks: Sequence[Mapping[Key, Sums]], ranks: int) -> list[Row]:
    """Return the rows of a job of ``ranks`` from its ranks' rows, by total time."""
    keys = dict.fromkeys(key for sums in of_ranks for key in sums)
    rows = []
    for key in keys:
        mine = [sums[key] for sums in of_ranks if key in sums and sums[key].calls]
        if not mine:
            continue
        avg_s = max(one.avg_s for one in mine)
        rows.append(
            Row(
                key=key,
                rank=None,
                sums=added(mine),
                avg_s=avg_s,
                longest_s=max(one.total_s for one in mine),
                busbw=_busbw(key, avg_s, ranks),
            )
        )
    return sorted(rows, key=_order)


def _busbw(key: Key, avg_s: float, ranks: int) -> float | None:
    op, size, *_, timing = key
    if timing == "issue" or avg_s <= 0 or not size:
        return None
    return size / avg_s * factor(op, ranks)


def _order(row: Row) -> tuple[float, Key]:
    return -row.sums.total_s, row.key


def _edge(position: float) -> float:
    return float(2.0 ** (position / 4) * 1e-6)
