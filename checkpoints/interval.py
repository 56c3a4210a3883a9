"""How often to write: Young's and Daly's interval, and what failures and checkpoints cost. Pure.

Sources: Young, CACM 17(9), 1974; Daly, FGCS 22(3), 2006, equation 37. ETTR is the effective
training time ratio: useful time of steps over wall time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

NO_FAILURE = 3.0
"""Failures that none seen does not exclude, with 95 % (rule of three)."""


@dataclass(slots=True, frozen=True)
class Exposure:
    """Failures of one kind of part (an endpoint, a server, an aggregator) at the site."""

    failures: int
    hours: float
    """Part-hours of watching: ten servers for a day are 240."""

    @property
    def per_hour(self) -> float:
        """Failures of one part in an hour; with none seen, the most that 95 % allow."""
        return (self.failures or NO_FAILURE) / self.hours


@dataclass(slots=True, frozen=True)
class Advice:
    """How often to write. Seconds; ratios of time. ``note`` names the basis."""

    interval_s: float
    steps: int
    """The interval in whole steps, at least 1."""
    cost_s: float
    mtbf_s: float
    """Mean time between failures of all that the job uses together."""
    waste: float
    """Part of the time that checkpoints, lost steps and restarts take at this interval."""
    waste_now: float | None
    """The same at the present interval; None without one."""
    bounded: bool
    """Some rate is a bound, as no failure was seen: the interval is too short rather than long."""


def young(cost_s: float, mtbf_s: float) -> float:
    """Return Young's interval in seconds, sqrt(2.C.M)."""
    return math.sqrt(2 * cost_s * mtbf_s)


def daly(cost_s: float, mtbf_s: float) -> float:
    """Return Daly's interval between checkpoints in seconds; the MTBF where C >= 2.M."""
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return young(cost_s, mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


def waste(interval_s: float, cost_s: float, restart_s: float, mtbf_s: float) -> float:
    """Return the part of time lost: C/T to write, (T/2 + R)/M to steps lost and restarts; <= 1."""
    return min(1.0, cost_s / interval_s + (interval_s / 2 + restart_s) / mtbf_s)


def mtbf(parts: Iterable[tuple[int, Exposure]]) -> float:
    """Return the MTBF in seconds of a job that uses so many parts of each kind.

    Raises ValueError when it uses nothing that was watched.
    """
    rate = sum(count * exposure.per_hour for count, exposure in parts if exposure.hours > 0)
    if rate <= 0:
        raise ValueError("no part of the job was watched: no rate of failures is known")
    return 3600.0 / rate


def advise(
    cost_s: float,
    step_s: float,
    restart_s: float,
    parts: Sequence[tuple[int, Exposure]],
    now_s: float | None = None,
) -> Advice:
    """Advise an interval from measured figures.

    ``cost_s`` is the time that one checkpoint holds training up (median), ``step_s`` a step's,
    ``restart_s`` a recovery's; ``now_s`` the present interval. Raises ValueError for figures that
    are not positive and finite (a cost or restart may be 0).
    """
    figures = (step_s, *(() if now_s is None else (now_s,)))
    if not all(math.isfinite(f) and f > 0 for f in figures) or not all(
        math.isfinite(f) and f >= 0 for f in (cost_s, restart_s)
    ):
        raise ValueError("a time of step, checkpoint, restart or interval was not measured")
    between = mtbf(parts)
    # A step is the least: nothing is written more often than a step changes.
    interval = max(step_s, daly(cost_s, between))
    return Advice(
        interval_s=interval,
        steps=max(1, round(interval / step_s)),
        cost_s=cost_s,
        mtbf_s=between,
        waste=waste(interval, cost_s, restart_s, between),
        waste_now=None if now_s is None else waste(now_s, cost_s, restart_s, between),
        bounded=any(count and not exposure.failures for count, exposure in parts),
    )


def overhead(with_s: Sequence[float], without_s: Sequence[float]) -> float:
    """Return (T_with - T_without) / T_without of the same steps, by medians of interleaved runs."""
    base = median(without_s)
    if base <= 0:
        raise ValueError("the runs without checkpoints lasted 0 s")
    return (median(with_s) - base) / base


def ettr(steps_kept: int, step_s: float, wall_s: float) -> float:
    """Return useful time of steps over wall time; steps done twice count once. 0 to 1."""
    if wall_s <= 0:
        raise ValueError("no time passed")
    return min(1.0, steps_kept * step_s / wall_s)


@dataclass(slots=True, frozen=True)
class Loss:
    """What one interruption cost a job."""

    cause: str
    """``endpoint``, ``server``, ``aggregator``, ``switch``, ``program``, ``drain`` …"""
    gpus: int
    recovery_s: float
    """From the failure to the first new step."""
    repeated_s: float
    """Steps that were done a second time."""

    @property
    def gpu_hours(self) -> float:
        """GPU-hours without progress."""
        return self.gpus * (self.recovery_s + self.repeated_s) / 3600


def lost_by_cause(losses: Iterable[Loss]) -> Mapping[str, float]:
    """Return lost GPU-hours by cause, the largest first."""
    found: dict[str, list[float]] = {}
    for loss in losses:
        found.setdefault(loss.cause, []).append(loss.gpu_hours)
    sums = {cause: math.fsum(hours) for cause, hours in found.items()}
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))
