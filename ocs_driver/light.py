"""Light as devices write it: dBm, or something that is no reading. Pure."""

from __future__ import annotations

import math

DARK_DBM = -35.0
"""Light below this is none: dark ports read about -50 dBm on Glimmerglass, -60 on Polatis."""


def finite(text: str) -> float | None:
    """Read a power value; None for NONE, empty or unreadable, and for what is no finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def lit(dbm: float | None) -> float | None:
    """Return a power, None where it means darkness."""
    return dbm if dbm is not None and dbm > DARK_DBM else None
