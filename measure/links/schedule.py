"""Which pairs of ranks are measured, and when: rounds in which every rank has one partner."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

from measure.kinds import MeasuredEndpoint

Pair = tuple[int, int]
"""Two ranks, the lower one first."""

SAMPLED_ABOVE = 32
"""More endpoints than this are sampled unless all pairs are asked for."""
LEAST_OF_CLASS = 8
LEAST_OF_ENDPOINT = 3

SAME_SERVER = "same server"
SAME_AGGREGATOR = "same aggregator"


def rounds(count: int) -> list[list[Pair]]:
    """Return a 1-factorisation of all pairs of ``count`` ranks (circle method).

    Every pair is in exactly one round, and no rank twice in a round. An odd count rests one rank
    in each round.
    """
    if count < 2:
        return []
    even = count + count % 2
    ring = list(range(1, even))
    found = []
    for _ in range(even - 1):
        line = [0, *ring]
        pairs = [(line[i], line[even - 1 - i]) for i in range(even // 2)]
        found.append(sorted((min(p), max(p)) for p in pairs if max(p) < count))
        ring = ring[-1:] + ring[:-1]
    return found


def class_of(a: MeasuredEndpoint, b: MeasuredEndpoint) -> str:
    """Return the topological class of the path between two endpoints."""
    if a.server == b.server and a.home == b.home:
        return SAME_SERVER
    if a.home == b.home:
        return SAME_AGGREGATOR
    return "-".join(sorted((a.home, b.home)))


def link_of(a: MeasuredEndpoint, b: MeasuredEndpoint) -> str | None:
    """Return the direction in which a path crosses between two aggregators; None inside one."""
    return None if a.home == b.home else f"{a.home} to {b.home}"


def choose(places: Sequence[MeasuredEndpoint], seed: int, *, every: bool) -> list[list[Pair]]:
    """Return the rounds to measure, shuffled: drift in time must not look like distance.

    Above SAMPLED_ABOVE endpoints, unless ``every`` pair is requested, a sample has at least
    LEAST_OF_CLASS pairs of every class and LEAST_OF_ENDPOINT of every endpoint, where there are
    so many.
    """
    shuffled = random.Random(seed)  # noqa: S311 - an order, not a secret
    found = rounds(len(places))
    shuffled.shuffle(found)
    if not every and len(places) > SAMPLED_ABOVE:
        found = _sample(found, places)
    for one in found:
        shuffled.shuffle(one)
    return [one for one in found if one]


def _sample(
    found: Sequence[Sequence[Pair]], places: Sequence[MeasuredEndpoint]
) -> list[list[Pair]]:
    of_class: defaultdict[str, int] = defaultdict(int)
    of_rank: defaultdict[int, int] = defaultdict(int)
    kept = []
    for one in found:
        chosen = []
        for a, b in one:
            name = class_of(places[a], places[b])
            lacks = of_class[name] < LEAST_OF_CLASS
            if lacks or min(of_rank[a], of_rank[b]) < LEAST_OF_ENDPOINT:
                chosen.append((a, b))
                of_class[name] += 1
                of_rank[a] += 1
                of_rank[b] += 1
        kept.append(chosen)
    return kept
