"""Summaries of repetitions: the median with an interval of order statistics, never a bare mean.

Hoefler and Belli, "Scientific benchmarking of parallel computing systems" (SC'15).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Z_95 = 1.959964


@dataclass(slots=True, frozen=True)
class Summary:
    """Repetitions of one figure; ``low`` and ``high`` bound its median with 95 %."""

    median: float
    low: float
    high: float
    min: float
    max: float
    n: int

    def document(self) -> dict[str, Any]:
        """Return it as the envelope has it."""
        return {
            "median": self.median,
            "ci": [self.low, self.high],
            "min": self.min,
            "max": self.max,
            "n": self.n,
        }


def median(values: Sequence[float]) -> float:
    """Return the median. Raises ValueError without values."""
    if not values:
        raise ValueError("median of an empty list")
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def summarise(values: Sequence[float]) -> Summary | None:
    """Return the summary of finite values, None without any."""
    ordered = sorted(value for value in values if math.isfinite(value))
    n = len(ordered)
    if not n:
        return None
    spread = Z_95 * math.sqrt(n) / 2
    low = max(math.floor(n / 2 - spread), 0)
    high = min(math.ceil(n / 2 + spread), n - 1)
    return Summary(median(ordered), ordered[low], ordered[high], ordered[0], ordered[-1], n)
