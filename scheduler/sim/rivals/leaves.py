"""Counts and allocates idle endpoints per aggregator, for all policies of this package."""

from __future__ import annotations

from scheduler.placement.index import FabricIndex
from scheduler.sim.cluster import ANY_GPU, Cluster


def idle_by_aggregator(cluster: Cluster) -> list[int]:
    """Return the number of idle endpoints under each aggregator; callers must not change it."""
    return cluster.index.pool(ANY_GPU).by_free.counts


def first_idle(index: FabricIndex, aggregator: int, count: int) -> list[str]:
    """Return the first idle endpoints of an aggregator in site order; there must be enough."""
    pool = index.pool(ANY_GPU)
    idle = sorted(e for slot in index.idle_at[aggregator] for e in pool.of(slot))
    return [index.names[e] for e in idle[:count]]


def widest_first(free: list[int], count: int) -> list[tuple[int, int]]:
    """Return (aggregator, endpoints) pairs for a job that does not fit under one aggregator.

    The aggregator with most idle endpoints is taken whole until one can hold the rest; of
    those the tightest.
    """
    left, idle = count, list(free)
    parts: list[tuple[int, int]] = []
    while left > 0:
        fitting = [a for a, n in enumerate(idle) if n >= left]
        if fitting:
            best = min(fitting, key=lambda a: idle[a])
        else:
            best = max(range(len(idle)), key=lambda a: idle[a])
        used = min(left, idle[best])
        parts.append((best, used))
        left -= used
        idle[best] = 0
    return parts
