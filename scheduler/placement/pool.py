"""Counts the endpoints that one kind of request can use, for constant-time placement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler.model import Spread
from scheduler.placement.buckets import Buckets

Ints = NDArray[np.int64]


def bit_set(members: Iterable[int], size: int) -> int:
    """Return numbers below ``size`` as the bits of one integer."""
    bits = bytearray(size // 8 + 1)
    for e in members:
        bits[e >> 3] |= 1 << (e & 7)
    return int.from_bytes(bits, "little")


class EndpointPool:
    """The endpoints that match one kind of request, and counts of the idle ones among them."""

    __slots__ = (
        "by_free",
        "fixed",
        "idle",
        "idle_by_slot",
        "least",
        "lit",
        "lost",
        "matches",
        "members",
        "servers",
        "total",
        "total_by_slot",
        "total_fixed",
    )

    def __init__(self, matches: Sequence[int] | None, aggregators: int, slots: int) -> None:
        self.matches = matches
        """Whether an endpoint matches, by number; None when all do."""
        self.members = 0
        """The same as a bit set."""
        self.total = 0
        """Endpoints of the site that match, idle or not."""
        self.lost = 0
        """Unavailable ones among them."""
        self.idle = 0
        self.lit = 0
        """Idle ones that have a home."""
        self.idle_by_slot = [0] * slots
        """Idle ones per slot."""
        self.fixed: Ints = np.zeros(aggregators, np.int64)
        """Idle hard-wired ones per aggregator."""
        self.total_by_slot: Ints = np.zeros(slots, np.int64)
        self.total_fixed: Ints = np.zeros(aggregators, np.int64)
        """The same for all matching endpoints, idle or not."""
        self.by_free = Buckets([0] * aggregators)
        """Aggregators by their number of lit idle ones."""
        self.servers: Buckets | None = None
        """Servers by their number of lit idle ones; None until needed."""
        self.least: dict[tuple[int, Spread | None], int] = {}
        """Least span on an empty site per job size and spread; placement fills it on demand."""

    def of(self, members: Sequence[int]) -> Sequence[int]:
        """Return the matching ones among the endpoints."""
        matches = self.matches
        return members if matches is None else [e for e in members if matches[e]]
