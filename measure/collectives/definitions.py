"""Sizes, counts and bandwidths of collectives as nccl-tests defines them.

NVIDIA/nccl-tests, ``doc/PERFORMANCE.md`` and the sources of each test: *algbw* is S / t with S
the size of the whole array, and *busbw* is algbw times a factor, by which it is comparable to
the rate of a link whatever the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

WIDTH = 4
"""Bytes of an element: all operations are measured on float32."""
_ALIGNMENT = 16
"""A rank's part of an array that is split is rounded down to so many bytes."""


class CollectiveOperation(StrEnum):
    """A collective, named as the test program of nccl-tests without ``_perf``."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALLTOALL = "alltoall"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    SENDRECV = "sendrecv"

    @property
    def splits(self) -> bool:
        """True if the count is of one rank's part and the array has a part for each rank."""
        return self in _SPLIT

    @property
    def in_place(self) -> bool:
        """True if frameworks write the result over the input, false if into another array."""
        return self in (
            CollectiveOperation.ALL_REDUCE,
            CollectiveOperation.BROADCAST,
            CollectiveOperation.REDUCE,
        )

    @property
    def redop(self) -> str:
        """The reduction in nccl-tests' column ``redop``."""
        return "none" if self in _COPIES else "sum"

    @property
    def root(self) -> int:
        """The rank in nccl-tests' column ``root``; -1 without one."""
        return 0 if self in (CollectiveOperation.BROADCAST, CollectiveOperation.REDUCE) else -1


_SPLIT = frozenset(
    {
        CollectiveOperation.ALL_GATHER,
        CollectiveOperation.REDUCE_SCATTER,
        CollectiveOperation.ALLTOALL,
    }
)
_COPIES = frozenset(
    {CollectiveOperation.ALL_GATHER, CollectiveOperation.ALLTOALL, CollectiveOperation.BROADCAST}
)


@dataclass(slots=True, frozen=True)
class Extent:
    """The array of one operation."""

    count: int
    """Elements: of one rank's part if the operation splits, else of the array."""
    size: int
    """Bytes of the whole array: S."""


def extent(operation: CollectiveOperation, size: int, ranks: int, width: int = WIDTH) -> Extent:
    """Return what nccl-tests measures when asked for ``size`` bytes.

    Both figures are 0 if a split array has less than 16 bytes for each rank.
    """
    count = size // width
    if not operation.splits:
        return Extent(count, count * width)
    step = max(_ALIGNMENT // width, 1)
    count = count // ranks // step * step
    return Extent(count, count * ranks * width)


def bus_factor(operation: CollectiveOperation, ranks: int) -> float:
    """Return busbw / algbw. Raises ValueError for fewer than 1 rank."""
    if ranks < 1:
        raise ValueError(f"a collective has at least one rank, not {ranks}")
    if operation is CollectiveOperation.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation.splits else 1.0


def algbw(size: int, seconds: float) -> float:
    """Return bytes/s. Raises ValueError for a time that is not positive."""
    if seconds <= 0:
        raise ValueError(f"an operation takes longer than {seconds} s")
    return size / seconds


def busbw(operation: CollectiveOperation, size: int, seconds: float, ranks: int) -> float:
    """Return bytes/s as a link of a ring would carry them."""
    return algbw(size, seconds) * bus_factor(operation, ranks)


def seconds_at(operation: CollectiveOperation, size: int, bandwidth: float, ranks: int) -> float:
    """Return the time that gives this busbw: the inverse of :func:`busbw`."""
    if bandwidth <= 0:
        raise ValueError(f"a bus bandwidth is above 0, not {bandwidth}")
    return size * bus_factor(operation, ranks) / bandwidth
