"""Reads figures from documents that a job wrote: of the right type and within bounds, or None."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from measure.envelope import Json

MOST: Final = 1e18
"""Largest figure that is believed."""
MOST_TEXT = 300


def figure(value: Json, low: float = 0.0, high: float = MOST) -> float | None:
    """Return a finite number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) > MOST:
        return None
    return float(value) if math.isfinite(value) and low <= value <= high else None


def whole(value: Json, low: int = 0, high: int = 2**62) -> int | None:
    """Return a whole number within bounds."""
    return value if type(value) is int and low <= value <= high else None


def words(value: Json) -> str:
    """Return a text, printable and cut; empty for anything else."""
    if not isinstance(value, str):
        return ""
    return "".join(c if c.isprintable() else " " for c in value[:MOST_TEXT]).strip()


def mapping(value: Json) -> Mapping[str, Json]:
    """Return an object, empty for anything else."""
    return value if isinstance(value, Mapping) else {}


def entries(value: Json, most: int) -> Sequence[Json]:
    """Return the first ``most`` entries of a list, none of anything else."""
    return value[:most] if isinstance(value, list | tuple) else ()
