"""How figures are written for people: with few digits and never with an exponent."""

from __future__ import annotations

import math

MOST_DECIMALS = 12


def figure(value: float, digits: int = 3) -> str:
    """Return ``value`` with so many significant digits: ``0.000123``, ``9.95``, ``9947340``.

    Digits before the decimal point are all written; there are MOST_DECIMALS behind it at most, and
    no zeros at the end.
    """
    if not value or not math.isfinite(value):
        return f"{value:.0f}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    text = f"{value:.{min(max(decimals, 0), MOST_DECIMALS)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
