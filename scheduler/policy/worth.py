"""Is a regroup worth its pauses? Predicted gain against cost, both in GPU-seconds.

A job that takes ``1 / slowdown`` of its present time after the regroup saves
``remaining * (1 - 1 / slowdown) * gpus``; every job whose light is cut stands still for its
dark time and until its transport has recovered. What step times do not tell yet makes the
gain an interval (``scheduler.steptime``), and the verdict then may be open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from scheduler.steptime.calibrate import Calibration, Interval

USUAL_RUN_S = 600.0
"""Expected rest of a job that has just started and named no time limit."""


class Verdict(StrEnum):
    """Whether the gain exceeds the cost."""

    YES = "yes"
    """Even at its least."""
    OPEN = "open"
    """At its most only: the measurements so far do not tell."""
    NO = "no"
    """Not even at its most."""


@dataclass(slots=True, frozen=True)
class Stake:
    """What one job wins and loses by a plan."""

    job: str
    gpus: int
    slowdown: Interval
    """Time of a step now over its time afterwards: above 1 is faster afterwards."""
    remaining_s: float
    """Expected rest of its run time as things are."""
    pause_s: float = 0.0
    """How long it stands still; 0 when its light is not cut."""

    @property
    def saved_s(self) -> Interval:
        """Run time that the job saves, in seconds."""
        low, high = self.slowdown.low, self.slowdown.high
        return Interval(self.remaining_s * (1.0 - 1.0 / low), self.remaining_s * (1.0 - 1.0 / high))


@dataclass(slots=True, frozen=True)
class Worth:
    """The whole plan's gain and cost."""

    verdict: Verdict
    gain_gpu_s: Interval
    cost_gpu_s: float
    reason: str


def weigh(stakes: Sequence[Stake], admitted_gpu_s: float = 0.0) -> Worth:
    """Weigh a plan. ``admitted_gpu_s``: waiting that it spares jobs in the queue, in GPU-seconds.

    Raises ValueError for a slowdown that is not above 0.
    """
    if any(stake.slowdown.low <= 0 for stake in stakes):
        raise ValueError("a slowdown is above 0")
    low = sum(stake.saved_s.low * stake.gpus for stake in stakes) + admitted_gpu_s
    high = sum(stake.saved_s.high * stake.gpus for stake in stakes) + admitted_gpu_s
    cost = sum(stake.pause_s * stake.gpus for stake in stakes)
    gain = Interval(low, high)
    if low > cost or (cost == 0 and low >= 0):
        verdict = Verdict.YES
    else:
        verdict = Verdict.OPEN if high > cost else Verdict.NO
    return Worth(verdict, gain, cost, _words(verdict, gain, cost))


def _words(verdict: Verdict, gain: Interval, cost: float) -> str:
    span = _figure(gain.high)
    if not gain.exact:
        span = f"{_figure(gain.low)} to {span}"
    end = {
        Verdict.YES: "it repays its pauses",
        Verdict.OPEN: "whether it repays its pauses is open until a second placement was measured",
        Verdict.NO: "it does not repay its pauses",
    }[verdict]
    return f"gain {span} GPU seconds for {_figure(cost)} of pauses: {end}"


def _figure(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def remaining_s(ran_s: float, time_limit_s: float | None) -> float:
    """Return the expected rest of a job's run time.

    Its time limit says; without one it is expected to run as long again as it ran already
    (run times of training jobs have a heavy tail), at least ``USUAL_RUN_S``.
    """
    if time_limit_s is not None:
        return max(time_limit_s - ran_s, 0.0)
    return max(ran_s, USUAL_RUN_S)


def slowdown(
    known: Calibration | None, rate_before: float | None, rate_after: float | None
) -> Interval:
    """Predict a step's time before over its time after; rates are relative to an access link.

    Without measurements it lies between "all compute" (1) and "all communication" (the ratio
    of the rates). A rate of None is not known and leaves nothing to predict: exactly 1.
    """
    if rate_before is None or rate_after is None or rate_before == rate_after:
        return Interval(1.0, 1.0)
    if known is None or known.placements == 0:
        ratio = rate_after / rate_before
        return Interval(min(1.0, ratio), max(1.0, ratio))
    before, after = known.predict(rate_before), known.predict(rate_after)
    # Both come from one job: what is open about it can not make a wider road slower.
    ratios = (before.low / after.high, before.high / after.low)
    if rate_after > rate_before:
        return Interval(max(ratios[0], 1.0), max(ratios[1], 1.0))
    return Interval(min(ratios[0], 1.0), min(ratios[1], 1.0))
