"""Epochs that an older copy of the store may lack, until an operator accepts the copy.

Part of the state.
"""

from __future__ import annotations

import json

MOST = 16
"""Ranges that are kept; the two oldest become one."""


class UnknownEpochs:
    """Ranges of epochs in which runs may have begun that this store lacks."""

    def __init__(self) -> None:
        self.ranges: tuple[tuple[int, int], ...] = ()
        """The first and the last epoch of each, in order."""

    def restore(self, stored: str) -> None:
        """Take over the stored fact."""
        self.ranges = tuple((int(first), int(last)) for first, last in json.loads(stored))

    def put(self, ranges: tuple[tuple[int, int], ...]) -> None:
        """Replace the ranges."""
        self.ranges = ranges

    def add(self, first: int, last: int) -> None:
        """Add a range after all others; one that continues the last one extends it."""
        ranges = [*self.ranges, (first, last)]
        joined = len(ranges) > 1 and ranges[-2][1] + 1 >= first
        if joined or len(ranges) > MOST:
            at = len(ranges) - 2 if joined else 0
            ranges[at : at + 2] = [(ranges[at][0], ranges[at + 1][1])]
        self.ranges = tuple(ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, epoch: int) -> bool:
        return any(first <= epoch <= last for first, last in self.ranges)

    def __str__(self) -> str:
        return ", ".join(f"{first} to {last}" for first, last in self.ranges)
