"""Reads values of results, parts of which jobs wrote: anything may be missing or wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from base.figures import figure
from console.cli.show import text as texts

NONE = texts.NONE
size = texts.size

Document = Mapping[str, Any]


def num(value: object) -> float | None:
    """Return a finite number, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def mid(value: object) -> float | None:
    """Return the median of repetitions, the middle of an interval, or the figure itself."""
    if not isinstance(value, Mapping):
        return num(value)
    median = num(value.get("median"))
    low, high = ends(value)
    return median if median is not None or low is None or high is None else (low + high) / 2


def ends(value: object) -> tuple[float | None, float | None]:
    """Return the ends of an interval, or of a median's 95 % interval; None for each without."""
    if not isinstance(value, Mapping):
        return None, None
    interval = value.get("ci")
    if isinstance(interval, list) and len(interval) == 2:
        return num(interval[0]), num(interval[1])
    return num(value.get("low")), num(value.get("high"))


def text(value: object, most: int = 300) -> str:
    """Return a short text; empty for None."""
    if value is None:
        return ""
    said = (
        ", ".join(text(one, most) for one in value[:50]) if isinstance(value, list) else str(value)
    )
    return said if len(said) <= most else f"{said[:most]}…"


def rows(result: Document, name: str = "rows") -> list[Document]:
    """Return the rows of a result that are objects."""
    found = result.get(name)
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def seconds(value: float | None) -> str:
    """Format a duration with three digits: ``45.2 ms``."""
    if value is None:
        return NONE
    for unit, scale, below in (("ns", 1e9, 1e-6), ("µs", 1e6, 1e-3), ("ms", 1e3, 0.1)):
        if 0 < abs(value) < below:
            return f"{figure(value * scale)} {unit}"
    return f"{figure(value)} s"


def per_second(value: float | None) -> str:
    """Format bytes per second in decimal units: ``14.2 MB/s``."""
    if value is None:
        return NONE
    for prefix in ("", "k", "M", "G"):
        if abs(value) < 999.5:
            return f"{figure(value)} {prefix}B/s"
        value /= 1000
    return f"{figure(value)} TB/s"


def count(value: float | None) -> str:
    """Format a plain figure: ``1,200``."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else figure(value)


def share(value: float | None) -> str:
    """Format a ratio: ``4.8 %``."""
    return NONE if value is None else f"{figure(100 * value)} %"


def change(value: float | None) -> str:
    """Format a relative change: ``+4.8 %``."""
    return NONE if value is None else f"{100 * value:+.1f} %"


def interval(value: object, write: Callable[[float], str] = seconds) -> str:
    """Format an interval: ``0.58 s to 0.61 s``."""
    low, high = ends(value)
    if low is None or high is None:
        return NONE
    first, last = write(low), write(high)
    return first if first == last else f"{first} to {last}"
