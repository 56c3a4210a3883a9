"""Reads the steps that the trainer's ranks printed. Every field is checked: jobs write them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from measure.envelope import Json, Row
from measure.kinds import Line
from measure.statistics import Z_95

SKIPPED = 4
"""First steps of a run, which warm caches and connections, are not counted."""
MOST_STEPS = 200_000
LEAST_S, MOST_S = 1e-9, 86_400.0


@dataclass(slots=True, frozen=True)
class ScalingSteps:
    """Means over the counted steps, in seconds.

    Means, not medians: under a CPU share a step waits for whole periods of the quota, and only
    the mean over many of them is its time.
    """

    n: int
    """Steps that every rank has printed."""
    step_s: float
    """Seconds of the slowest rank."""
    interval: tuple[float, float] | None
    """95 % interval of that mean; None for one step."""
    compute_s: float
    """Mean over ranks."""
    comm_s: float
    """Seconds of the rank that waits least: it is the last to begin its all-reduce."""


def read_steps(lines: Sequence[Line], run: int, ranks: int) -> ScalingSteps | None:
    """Return the steps of a run, None if a rank printed none that counts."""
    by_rank: list[dict[int, tuple[float, float, float]]] = [{} for _ in range(ranks)]
    for line in lines:
        if line.run != run or not 0 <= line.rank < ranks:
            continue
        found = _step(line.record)
        if found is not None and len(by_rank[line.rank]) < MOST_STEPS:
            number, times = found
            by_rank[line.rank].setdefault(number, times)
    common = set.intersection(*(set(steps) for steps in by_rank)) if by_rank else set()
    counted = sorted(number for number in common if number >= SKIPPED)
    if not counted:
        return None
    n = len(counted)
    means = [
        tuple(math.fsum(steps[number][part] for number in counted) / n for part in range(3))
        for steps in by_rank
    ]
    slowest = max(range(ranks), key=lambda rank: means[rank][0])
    mean = means[slowest][0]
    squares = math.fsum((by_rank[slowest][number][0] - mean) ** 2 for number in counted)
    half = Z_95 * math.sqrt(squares / (n - 1) / n) if n > 1 else None
    return ScalingSteps(
        n,
        mean,
        (max(mean - half, 0.0), mean + half) if half is not None else None,
        math.fsum(part[1] for part in means) / ranks,
        min(part[2] for part in means),
    )


def _step(record: Row) -> tuple[int, tuple[float, float, float]] | None:
    if record.get("event") != "step":
        return None
    number = record.get("step")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**31:
        return None
    step, compute, comm = (_time(record.get(name)) for name in ("step_s", "compute_s", "comm_s"))
    if step is None or compute is None or comm is None or step < LEAST_S:
        return None
    return number, (step, compute, comm)


def _time(value: Json) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MOST_S else None
