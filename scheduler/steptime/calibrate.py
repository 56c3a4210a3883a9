"""Fits a job's step profile to measured step times, with the uncertainty that remains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.steptime.profile import StepProfile

_SAME_RATE = 0.02
"""Rates closer than this, relatively, are one placement: their times only average."""


@dataclass(slots=True, frozen=True)
class PredictionInterval:
    """A prediction: the truth lies between ``low`` and ``high`` if the model holds."""

    low: float
    high: float

    @property
    def exact(self) -> bool:
        """True if the measurements determine the value."""
        return self.high - self.low <= 1e-9 * max(self.high, 1e-300)


@dataclass(slots=True)
class _Seen:
    rate: float
    step_s: float
    weight: float


class Calibration:
    """Fits one job's profile to step times measured under different placements.

    ``rate`` is the ring's fair share relative to an access link, as ``rings`` gives it for
    the placement. The size of the job is constant. Measurements of one placement do not separate
    compute and communication: predictions are intervals from "all compute" to "all
    communication". Two placements do, up to ``hide``; give ``hide`` to assume it.
    """

    def __init__(
        self,
        size: int,
        *,
        hide: float | None = None,
        hop_s: float = 0.0,
        memory: float = 50.0,
    ) -> None:
        """``memory`` is the number of measurements that the average of a placement covers."""
        if size < 1 or memory < 1 or not (hide is None or 0 <= hide < 1):
            raise ValueError("size and memory must be at least 1, and hide from 0 to below 1")
        self.size = size
        self._hide = hide
        self._latency_s = 2.0 * (size - 1) * hop_s
        self._hop_s = hop_s
        self._memory = memory
        self._seen: list[_Seen] = []

    def observe(self, rate: float, step_s: float) -> None:
        """Add one measured step. Raises ValueError unless both are above 0."""
        if rate <= 0 or step_s <= 0:
            raise ValueError(f"a step of {step_s} s at rate {rate} is impossible")
        for seen in self._seen:
            if abs(seen.rate - rate) <= _SAME_RATE * seen.rate:
                seen.weight = min(seen.weight + 1, self._memory)
                seen.step_s += (step_s - seen.step_s) / seen.weight
                seen.rate += (rate - seen.rate) / seen.weight
                return
        self._seen.append(_Seen(rate, step_s, 1.0))
        self._seen.sort(key=lambda s: s.rate)

    @property
    def placements(self) -> int:
        """Number of different rates seen so far."""
        return len(self._seen)

    @property
    def unidentified(self) -> tuple[str, ...]:
        """The fields of the profile that the measurements do not determine yet."""
        if self.size == 1:
            return ("ring_s", "hide")  # a lone rank has no ring
        if self.placements < 2:
            return ("compute_s", "ring_s", "hide")
        return () if self._hide is not None else ("compute_s", "hide")

    def profile(self) -> StepProfile | None:
        """Return the profile for the assumed ``hide`` (0 if none), None if it is not known yet."""
        if self.size > 1 and self.placements < 2:
            return None
        if not self._seen:
            return None
        if self.size == 1:
            return StepProfile(self._seen[-1].step_s, 0.0, self._hide or 0.0, self._hop_s)
        lead, wire = self._line()
        hide = self._hide or 0.0
        fastest = self._seen[-1]
        compute = lead / (1.0 - hide)
        if compute > fastest.step_s:
            # The fastest placement hides all communication: its step is the compute alone.
            compute = fastest.step_s
            wire = self._wire_behind((1.0 - hide) * compute)
        copies = 2.0 * (self.size - 1) / self.size
        return StepProfile(compute, wire / copies, hide, self._hop_s)

    def predict(self, rate: float) -> PredictionInterval:
        """Return the step time at ``rate``. Raises ValueError before the first measurement."""
        if not self._seen:
            raise ValueError("no step was measured yet")
        if rate <= 0:
            raise ValueError(f"rate {rate} is not above 0")
        if self.size == 1:
            time = self._seen[-1].step_s
            return PredictionInterval(time, time)
        if self.placements == 1:
            seen = self._seen[0]
            latency = min(self._latency_s, seen.step_s)
            other = latency + (seen.step_s - latency) * seen.rate / rate
            return PredictionInterval(min(seen.step_s, other), max(seen.step_s, other))
        if self._hide is not None:
            profile = self.profile()
            assert profile is not None  # noqa: S101 - two placements were seen
            time = profile.step_s(self.size, rate)
            return PredictionInterval(time, time)
        return self._open_hide(rate)

    def _open_hide(self, rate: float) -> PredictionInterval:
        """Return the prediction for every possible ``hide``.

        At lower rates than those seen, communication is exposed and the line continues. At higher
        ones the step follows the line or ends at the compute, at most the fastest step seen.
        """
        lead, wire = self._line()
        line = lead + self._latency_s + wire / rate
        fastest = self._seen[-1]
        if rate >= fastest.rate:
            return PredictionInterval(min(line, fastest.step_s), fastest.step_s)
        # If the fastest one is already compute-bound, the line is steeper than the fit: at the
        # steepest, the slowest step is all communication.
        slowest = self._seen[0]
        steep = self._latency_s + (slowest.step_s - self._latency_s) * slowest.rate / rate
        if rate > slowest.rate:
            steep = max(steep, fastest.step_s)
        return PredictionInterval(min(line, steep), max(line, steep))

    def _line(self) -> tuple[float, float]:
        """Fit ``step = lead + latency + wire / rate`` with neither part negative."""
        inverse = np.array([1.0 / s.rate for s in self._seen])
        time = np.array([max(s.step_s - self._latency_s, 0.0) for s in self._seen])
        weight = np.array([s.weight for s in self._seen])
        mean_x, mean_y = np.average(inverse, weights=weight), np.average(time, weights=weight)
        spread = float(weight @ (inverse - mean_x) ** 2)
        wire = max(float(weight @ ((inverse - mean_x) * (time - mean_y))) / spread, 0.0)
        lead = float(mean_y - wire * mean_x)
        if lead < 0:  # all communication
            wire = float((weight * inverse) @ time / ((weight * inverse) @ inverse))
            lead = 0.0
        return lead, wire

    def _wire_behind(self, lead: float) -> float:
        """Return the ring's seconds at rate 1 when ``lead`` is known, from the slower ones."""
        slower = self._seen[:-1]
        shares = [max(s.step_s - self._latency_s - lead, 0.0) * s.rate for s in slower]
        return float(np.average(shares, weights=[s.weight for s in slower]))
