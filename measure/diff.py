"""Compares two results of the same type: rows with equal keys, ratios with intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from measure.envelope import Row


@dataclass(slots=True, frozen=True)
class Ratio:
    """Second over first figure; ``low`` and ``high`` where both have 95 % intervals."""

    key: Mapping[str, Any]
    """What the two rows share: ``{"from": "gpu0", "to": "gpu1", "size": 65536}``."""
    figure: str
    first: float
    second: float
    ratio: float
    low: float | None = None
    high: float | None = None

    @property
    def differs(self) -> bool | None:
        """Whether the two intervals do not overlap; None without intervals."""
        if self.low is None or self.high is None:
            return None
        return not self.low <= 1.0 <= self.high


@dataclass(slots=True, frozen=True)
class Difference:
    """What two results of one type have in common, and how they differ."""

    ratios: Sequence[Ratio]
    settings: Mapping[str, tuple[Any, Any]]
    """Settings whose values differ."""
    only_first: int
    """Rows that only the first has."""
    only_second: int


def diff(first: Row, second: Row) -> Difference:
    """Compare two envelopes. Raises ValueError when their types differ.

    The key of a row is made of its texts, whole numbers, truth values and nulls; figures are
    floating-point numbers and summaries of repetitions (``median``, ``ci``).
    """
    if first["type"] != second["type"]:
        raise ValueError(f"{first['type']} and {second['type']} are different measurements")
    ours, theirs = _by_key(first["rows"]), _by_key(second["rows"])
    ratios = [
        ratio
        for key, row in ours.items()
        if key in theirs
        for ratio in _ratios(dict(key), row, theirs[key])
    ]
    a, b = first["settings"], second["settings"]
    changed = {
        name: (a.get(name), b.get(name)) for name in sorted({*a, *b}) if a.get(name) != b.get(name)
    }
    return Difference(
        ratios, changed, len(ours.keys() - theirs.keys()), len(theirs.keys() - ours.keys())
    )


_Key = tuple[tuple[str, Any], ...]
_FOUND = frozenset({"group", "count", "n", "wrong"})
"""Whole numbers that are results, not keys."""


def _by_key(rows: Sequence[Row]) -> dict[_Key, Row]:
    found: dict[_Key, Row] = {}
    for row in rows:
        key = tuple(
            (name, value)
            for name, value in sorted(row.items())
            if isinstance(value, str | int) and name not in _FOUND
        )
        found.setdefault(key, row)
    return found


def _ratios(key: Mapping[str, Any], ours: Row, theirs: Row) -> list[Ratio]:
    found = []
    for name, value in ours.items():
        one, other = _figure(value), _figure(theirs.get(name))
        if one is None or other is None:
            continue
        (a, a_low, a_high), (b, b_low, b_high) = one, other
        whole = all(v is not None and v > 0 for v in (a_low, a_high, b_low, b_high))
        low = b_low / a_high if whole and b_low is not None and a_high is not None else None
        high = b_high / a_low if whole and b_high is not None and a_low is not None else None
        found.append(Ratio(key, name, a, b, b / a, low, high))
    return found


def _figure(value: Any) -> tuple[float, float | None, float | None] | None:
    """Return a figure and its interval; None unless it is positive and finite."""
    low = high = None
    if isinstance(value, Mapping):
        interval = value.get("ci")
        if isinstance(interval, list | tuple) and len(interval) == 2:
            low, high = (v if isinstance(v, int | float) else None for v in interval)
        value = value.get("median")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and low is None:
        return None  # a whole number is a key
    return (float(value), low, high) if math.isfinite(value) and value > 0 else None
