"""Finds the measured figure that a job's collective is comparable to. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from measure.collectives.definitions import CollectiveOperation
from measure.envelope import Json
from scheduler.steptime.identify import GOODPUT

LEAST_BYTES = 2**20
"""Below this size latency dominates, and the rate of links does not matter."""
LEAST_SHARE = 0.2
"""A ring that gets less of its links waits for something else."""
LARGEST_RATIO = 2.0
"""A point of a size further off, as a factor, does not apply to a call."""


def matching(
    result: Mapping[str, Json], operation: str, homes: Sequence[str | None], size: int
) -> tuple[float, int] | None:
    """Return the busbw in bytes/s and the size of the nearest point on a ring like this one.

    ``result`` is the envelope of a measurement of collectives, ``homes`` are the aggregators of
    the ring's members in order. A ring is alike if it has as many members and loads the links
    between aggregators as much. None where nothing like it was measured.
    """
    if size <= 0:
        return None
    found: dict[int, float] = {}
    for row in result["rows"]:
        half = row["in_place"] or row["out_of_place"]
        # Results of other tools and of older versions lack the places of ranks.
        there = row.get("homes")
        if half is None or not half["bus_bw"] or there is None or row["operation"] != operation:
            continue
        if len(there) == len(homes) and loads(there) == loads(homes):
            found[row["size"]] = half["bus_bw"]
    near = min(found, key=lambda one: (_ratio(one, size), one), default=None)
    if near is None or _ratio(near, size) > LARGEST_RATIO:
        return None
    return found[near], near


def ring_share(result: Mapping[str, Json]) -> float | None:
    """Return the share of its slowest link's goodput that a large all-reduce got, at most 1.

    The largest size counts, and of several rings the one that got most. None without such a ring.
    Raises ValueError, KeyError or TypeError for other documents than results of collectives.
    """
    found = [
        (int(row["size"]), float(row["link_share"]) / GOODPUT)
        for row in result["rows"]
        if row["operation"] == CollectiveOperation.ALL_REDUCE.value
        and row.get("link_share") is not None
    ]
    size, share = max(found, default=(0, 0.0))
    return min(share, 1.0) if size >= LEAST_BYTES and share >= LEAST_SHARE else None


def loads(homes: Sequence[str | None]) -> Counter[tuple[str | None, str | None]]:
    """Return how often a ring crosses from one aggregator to another."""
    return Counter(
        (here, there)
        for here, there in zip(homes, [*homes[1:], *homes[:1]], strict=True)
        if here != there
    )


def _ratio(one: int, other: int) -> float:
    return max(one, other) / max(min(one, other), 1)
