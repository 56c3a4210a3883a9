"""Finds the groups that values of pairs form; no number of groups is given."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from measure.statistics import median

LEAST_GAP = math.log(1.15)
SPREADS = 3.0
"""A gap between groups exceeds so many spreads of the repetitions."""


def cut(
    values: Sequence[float], repetitions: Sequence[Sequence[float]], least: float = 0.0
) -> list[tuple[int, ...]]:
    """Return the groups of positive ``values``, one of each pair, ascending, by their positions.

    Neighbours are separated where their gap exceeds ``least`` and, in the logarithm, LEAST_GAP and
    SPREADS pooled spreads of the repetitions. Slower pairs whose fastest repetitions lie no such
    gap above the group before them were disturbed, and belong to it.
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    if not order:
        return []
    gap = max(LEAST_GAP, SPREADS * pooled_spread(repetitions))

    def apart(low: float, high: float) -> bool:
        return math.log(high / low) > gap and high - low > least

    runs = [[order[0]]]
    for before, here in itertools.pairwise(order):
        if apart(values[before], values[here]):
            runs.append([])
        runs[-1].append(here)
    parts, slowest = runs[:1], values[runs[0][-1]]
    for run in runs[1:]:
        fastest = median([min(repetitions[i], default=values[i]) for i in run])
        if apart(slowest, fastest):
            parts.append(run)
            slowest = values[run[-1]]
        else:
            parts[-1] = parts[-1] + run
    return [tuple(sorted(part)) for part in parts]


def lead(repetitions: Sequence[Sequence[float]]) -> float:
    """Return by how much, in the logarithm, the fastest repetition leads the next; typically."""
    gaps = []
    for values in repetitions:
        ordered = sorted(value for value in values if value > 0)
        if len(ordered) > 1:
            gaps.append(math.log(ordered[1] / ordered[0]))
    return median(gaps) if gaps else 0.0


def pooled_spread(repetitions: Sequence[Sequence[float]]) -> float:
    """Return the typical spread of one pair's repetitions in the logarithm.

    The median of the absolute deviations from each pair's median, scaled as of a normal
    distribution: one slow repetition does not hide a group.
    """
    deviations = []
    for values in repetitions:
        logs = [math.log(value) for value in values if value > 0]
        if len(logs) > 1:
            middle = median(logs)
            deviations += [abs(value - middle) for value in logs]
    return 1.4826 * median(deviations) if deviations else 0.0
