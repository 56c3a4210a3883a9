"""Parses optical power values as devices write them. Pure."""

from __future__ import annotations

import math

DARK_DBM = -35.0
"""Power below this is dark: dark ports read about -50 dBm on Glimmerglass, -60 on Polatis."""


def finite(text: str) -> float | None:
    """Parse a power value; None for NONE, empty, unreadable or non-finite values."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def lit(dbm: float | None) -> float | None:
    """Return a power, or None when it means dark."""
    return dbm if dbm is not None and dbm > DARK_DBM else None
