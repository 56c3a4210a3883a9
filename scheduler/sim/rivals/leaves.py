"""What the rivals share: idle endpoints per aggregator, taken in site order."""

from __future__ import annotations

from scheduler.placement.index import FabricIndex
from scheduler.sim.cluster import ANY_GPU, Cluster


def idle_by_aggregator(cluster: Cluster) -> list[int]:
    """Return the idle endpoints under each aggregator. Not to be changed."""
    return cluster.index.pool(ANY_GPU).by_free.counts


def take(index: FabricIndex, aggregator: int, count: int) -> list[str]:
    """Return the names of the first idle endpoints there; there must be enough."""
    pool = index.pool(ANY_GPU)
    idle = sorted(e for slot in index.idle_at[aggregator] for e in pool.of(slot))
    return [index.names[e] for e in idle[:count]]


def widest_first(free: list[int], count: int) -> list[tuple[int, int]]:
    """Return (aggregator, endpoints) for a job that no aggregator holds alone.

    The fullest room is taken whole until one holds the rest; of those the tightest.
    """
    left, rooms = count, list(free)
    parts: list[tuple[int, int]] = []
    while left > 0:
        fitting = [a for a, n in enumerate(rooms) if n >= left]
        if fitting:
            best = min(fitting, key=lambda a: rooms[a])
        else:
            best = max(range(len(rooms)), key=lambda a: rooms[a])
        used = min(left, rooms[best])
        parts.append((best, used))
        left -= used
        rooms[best] = 0
    return parts
