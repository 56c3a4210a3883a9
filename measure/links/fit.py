"""Fits the latency and bandwidth of a class of paths: t(s) = alpha + s / beta (Hockney).

The two come from two tests: alpha from the smallest message's time one way, beta from messages
that follow one another. One line through both would be wrong: short messages pass a shaped link in
a burst, faster than the link.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from measure.statistics import median


@dataclass(slots=True, frozen=True)
class LinkFit:
    """A class's latency (seconds) and bandwidth (bytes/s)."""

    alpha_s: float
    beta: float
    residual: float
    """Root mean square of the relative residuals."""

    @property
    def n_half(self) -> float:
        """Bytes of the message that reaches half of the bandwidth."""
        return self.alpha_s * self.beta


def fit(points: Sequence[tuple[float, float]]) -> LinkFit | None:
    """Fit (bytes, seconds) with weights 1/t^2; None with fewer than two sizes, or no slope.

    alpha is never below 0: then the line goes through the origin.
    """
    points = [(s, t) for s, t in points if t > 0 and math.isfinite(t)]
    if len({s for s, _ in points}) < 2:
        return None
    weight = [1.0 / (t * t) for _, t in points]
    total = sum(weight)
    mean_s = sum(w * s for w, (s, _) in zip(weight, points, strict=True)) / total
    mean_t = sum(w * t for w, (_, t) in zip(weight, points, strict=True)) / total
    spread = sum(w * (s - mean_s) ** 2 for w, (s, _) in zip(weight, points, strict=True))
    joint = sum(w * (s - mean_s) * (t - mean_t) for w, (s, t) in zip(weight, points, strict=True))
    slope = joint / spread
    alpha = mean_t - slope * mean_s
    if alpha < 0:
        alpha = 0.0
        square = sum(w * s * s for w, (s, _) in zip(weight, points, strict=True))
        slope = sum(w * s * t for w, (s, t) in zip(weight, points, strict=True)) / square
    if slope <= 0:
        return None
    off = [((alpha + slope * s) / t - 1.0) ** 2 for s, t in points]
    return LinkFit(alpha, 1.0 / slope, math.sqrt(sum(off) / len(off)))


def of_class(
    latency: Sequence[tuple[float, float]], bandwidth: Sequence[tuple[float, float]]
) -> LinkFit | None:
    """Fit a class from (bytes, seconds) of single messages, and of messages in a row.

    Without messages in a row, the single ones give both; with one size of them, its rate counts.
    """
    if not bandwidth:
        return fit(latency)
    line = fit(bandwidth)
    if line is None:
        rates = [s / t for s, t in bandwidth if t > 0 and math.isfinite(t)]
        if not rates:
            return None
        line = LinkFit(0.0, median(rates), 0.0)
    least = min((s for s, _ in latency), default=None)
    if least is None:
        return line
    alpha = median([t for s, t in latency if s == least])
    return LinkFit(alpha, line.beta, line.residual)
