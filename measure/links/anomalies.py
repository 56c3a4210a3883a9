"""Finds what is slower than others of its class, and the endpoint, link or path to blame.

A class's usual time is its lower quartile: up to three quarters of its pairs may be slow, as half
of the pairs under an aggregator of three endpoints are where one fiber is. Median polish of rows
and columns does not do here: pairs that cross a slower link between aggregators do not show a slow
fiber, and they are the most of such an endpoint's pairs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from measure.statistics import median

ENDPOINT_RATIO = 1.075
"""Least ratio of times where several pairs agree: a rate that is lower by 7 %."""
PATH_RATIO = 1.10
SPREADS = 3.0
"""A pair stands out by more than so many spreads."""
LEAST_PAIRS = 3
"""A class with fewer measured pairs has no usual time."""
LEAST_CELLS = 2
"""An endpoint is blamed for no fewer pairs."""
SHARE = 0.75
"""Share of an endpoint's or link's pairs of one class that are slow if it is to blame."""

Ordered = tuple[int, int]
"""Sender and receiver."""


@dataclass(slots=True, frozen=True)
class LinkAnomaly:
    """What is slow at one size; ``ratio`` above 1 is the time over the usual one."""

    kind: str
    """``sends``, ``receives``, ``path``, or ``link`` of two aggregators."""
    object: tuple[int, ...] | str
    """The rank, the sender and receiver, or the link's name."""
    ratio: float
    pairs: int
    """Number of pairs behind it."""


@dataclass(slots=True, frozen=True)
class Bounds:
    """What the time of a pair must exceed to be slow; a class of fewer ``pairs`` is left out."""

    spread: float = 0.0
    """Spread of repetitions, in the logarithm; counts SPREADS times."""
    ratio: float = ENDPOINT_RATIO
    """To the usual time of its class."""
    seconds: float = 0.0
    """More than the usual time of its class."""
    pairs: int = LEAST_PAIRS


def slower(
    times: Mapping[Ordered, float],
    classes: Mapping[Ordered, str],
    bounds: Bounds,
    usual: Mapping[Ordered, float] | None = None,
) -> dict[Ordered, float]:
    """Return the ratio of every pair's time to the usual one of its class, where it is slow.

    The usual time of a class is the lower quartile of ``usual``; None means of ``times``.
    """
    found = {}
    limit = max(math.log(bounds.ratio), SPREADS * bounds.spread)
    for name in sorted({classes[pair] for pair in times}):
        own = {pair: t for pair, t in times.items() if classes[pair] == name}
        if len(own) < bounds.pairs:
            continue
        of_class = sorted((usual or times)[pair] for pair in own)[(len(own) - 1) // 4]
        for pair, value in own.items():
            if math.log(value / of_class) > limit and value - of_class > bounds.seconds:
                found[pair] = value / of_class
    return found


def attribute(
    times: Mapping[Ordered, float],
    classes: Mapping[Ordered, str],
    links: Mapping[Ordered, str],
    bounds: Bounds,
    *,
    usual: Mapping[Ordered, float] | None = None,
    best: Mapping[Ordered, float] | None = None,
) -> list[LinkAnomaly]:
    """Return what is slow at one size; what explains most pairs comes first.

    ``times`` are positive, ``classes`` names the class of every pair in it, and ``links`` the
    direction of the link for pairs that cross one. A row or column of slow pairs is an endpoint
    that sends or receives slowly; a direction between two aggregators is a link; what is left are
    paths. A path has only one pair, so its ``best`` time must be slow as well: the time of its
    fastest repetition, where ``times`` differ from it. ``usual`` is as in ``slower``.
    """
    slow = slower(times, classes, bounds, usual)
    found = []
    while slow:
        suspects = list(_suspects(slow, times, classes, links))
        first = max(suspects, key=lambda suspect: suspect[0]) if suspects else None
        if first is None:
            break
        found.append(first[1])
        for pair in first[2]:
            del slow[pair]
    limit = max(PATH_RATIO, math.exp(SPREADS * bounds.spread))
    for pair, ratio in sorted(slow.items()):
        surely = ratio if best is None else ratio * best[pair] / times[pair]
        if surely > limit:
            found.append(LinkAnomaly("path", pair, ratio, 1))
    return found


_Suspect = tuple[tuple[int, float, str], LinkAnomaly, tuple[Ordered, ...]]


def _suspects(
    slow: Mapping[Ordered, float],
    times: Mapping[Ordered, float],
    classes: Mapping[Ordered, str],
    links: Mapping[Ordered, str],
) -> Iterator[_Suspect]:
    cells: defaultdict[tuple[str, int | str], list[Ordered]] = defaultdict(list)
    for pair in times:
        cells["sends", pair[0]].append(pair)
        cells["receives", pair[1]].append(pair)
        if pair in links:
            cells["link", links[pair]].append(pair)
    for (kind, about), own in cells.items():
        mine = tuple(_mostly_slow(own, slow, classes))
        senders, receivers = ({pair[at] for pair in mine} for at in (0, 1))
        if len(mine) < LEAST_CELLS:
            continue
        if kind == "link" and min(len(senders), len(receivers)) < LEAST_CELLS:
            continue
        ratio = median([slow[pair] for pair in mine])
        what = LinkAnomaly(kind, about if isinstance(about, str) else (about,), ratio, len(mine))
        yield (len(mine), ratio, f"{kind} {about}"), what, mine


def _mostly_slow(
    own: Sequence[Ordered], slow: Mapping[Ordered, float], classes: Mapping[Ordered, str]
) -> Iterator[Ordered]:
    """Yield the slow pairs of the classes in which nearly all of ``own`` are slow.

    A slow fiber shows in a class in all pairs, or in none where the class is slower anyway; a
    few slow pairs of another class are another matter.
    """
    for name in sorted({classes[pair] for pair in own}):
        looked = [pair for pair in own if classes[pair] == name]
        mine = [pair for pair in looked if pair in slow]
        if len(mine) >= SHARE * len(looked):
            yield from mine
