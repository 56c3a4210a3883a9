"""Compares the predicted gain of a regroup with the cost of its pauses, in GPU-seconds.

A job that needs ``1 / slowdown`` of its present time after the regroup saves
``remaining * (1 - 1 / slowdown) * gpus``; every job whose light is cut stalls for its dark
time and until its transport has recovered. Where the measured step times do not determine
the gain, it is an interval (``scheduler.steptime``), and the verdict may be open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from scheduler.steptime.calibrate import Calibration, PredictionInterval

USUAL_RUN_S = 600.0
"""Expected remaining run time of a job that has just started without a time limit."""


class WorthVerdict(StrEnum):
    """Whether the gain exceeds the cost."""

    YES = "yes"
    """Even at its lower end."""
    OPEN = "open"
    """Only at its upper end: more measurements are needed."""
    NO = "no"
    """Not even at its upper end."""


@dataclass(slots=True, frozen=True)
class Stake:
    """The effect of a plan on one job."""

    job: str
    gpus: int
    slowdown: PredictionInterval
    """Step time before the plan over step time after it: above 1 the job becomes faster."""
    remaining_s: float
    """Expected remaining run time without the plan."""
    pause_s: float = 0.0
    """How long it stalls; 0 if its light is not cut."""

    @property
    def saved_s(self) -> PredictionInterval:
        """Run time that the job saves."""
        low, high = self.slowdown.low, self.slowdown.high
        return PredictionInterval(
            self.remaining_s * (1.0 - 1.0 / low), self.remaining_s * (1.0 - 1.0 / high)
        )


@dataclass(slots=True, frozen=True)
class Worth:
    """Gain and cost of the whole plan."""

    verdict: WorthVerdict
    gain_gpu_s: PredictionInterval
    cost_gpu_s: float
    reason: str


def weigh(stakes: Sequence[Stake], admitted_gpu_s: float = 0.0) -> Worth:
    """Compare a plan's gain with its cost.

    ``admitted_gpu_s`` is the waiting time that the plan saves queued jobs, in GPU-seconds.
    Raises ValueError for a slowdown of 0 or less.
    """
    if any(stake.slowdown.low <= 0 for stake in stakes):
        raise ValueError("a slowdown must be above 0")
    low = sum(stake.saved_s.low * stake.gpus for stake in stakes) + admitted_gpu_s
    high = sum(stake.saved_s.high * stake.gpus for stake in stakes) + admitted_gpu_s
    cost = sum(stake.pause_s * stake.gpus for stake in stakes)
    gain = PredictionInterval(low, high)
    if low > cost or (cost == 0 and low >= 0):
        verdict = WorthVerdict.YES
    else:
        verdict = WorthVerdict.OPEN if high > cost else WorthVerdict.NO
    return Worth(verdict, gain, cost, _sentence(verdict, gain, cost))


def _sentence(verdict: WorthVerdict, gain: PredictionInterval, cost: float) -> str:
    span = _figure(gain.high)
    if not gain.exact:
        span = f"{_figure(gain.low)} to {span}"
    end = {
        WorthVerdict.YES: "it repays its pauses",
        WorthVerdict.OPEN: "whether it repays its pauses is open until a second placement was"
        " measured",
        WorthVerdict.NO: "it does not repay its pauses",
    }[verdict]
    return f"gain {span} GPU seconds for {_figure(cost)} of pauses: {end}"


def _figure(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def remaining_s(ran_s: float, time_limit_s: float | None) -> float:
    """Return a job's expected remaining run time.

    It follows from the time limit; without one the job is expected to run as long as it has
    run already (run times of training jobs have a heavy tail), at least ``USUAL_RUN_S``.
    """
    if time_limit_s is not None:
        return max(time_limit_s - ran_s, 0.0)
    return max(ran_s, USUAL_RUN_S)


def slowdown(
    known: Calibration | None, rate_before: float | None, rate_after: float | None
) -> PredictionInterval:
    """Predict the step time before over the step time after; rates are relative to an access link.

    Without measurements it lies between "all compute" (1) and "all communication" (the ratio
    of the rates). It is exactly 1 when a rate is None (unknown).
    """
    if rate_before is None or rate_after is None or rate_before == rate_after:
        return PredictionInterval(1.0, 1.0)
    if known is None or known.placements == 0:
        ratio = rate_after / rate_before
        return PredictionInterval(min(1.0, ratio), max(1.0, ratio))
    before, after = known.predict(rate_before), known.predict(rate_after)
    # Both intervals are of one job: a higher rate never makes a step slower.
    ratios = (before.low / after.high, before.high / after.low)
    if rate_after > rate_before:
        return PredictionInterval(max(ratios[0], 1.0), max(ratios[1], 1.0))
    return PredictionInterval(min(ratios[0], 1.0), min(ratios[1], 1.0))
