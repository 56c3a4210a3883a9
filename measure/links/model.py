"""The figures of measured links for the step model."""

from __future__ import annotations

import math
from collections.abc import Mapping

from measure.envelope import Json, Row


def link_model(result: Row) -> dict[str, tuple[float, float]]:
    """Return latency (s) and bandwidth (bytes/s) by class, from a result of ``measure links``.

    Raises ValueError, KeyError or TypeError for another document.
    """
    found = {}
    for fit in result["fits"]:
        alpha, beta = float(fit["alpha_s"]), float(fit["beta"])
        if not (math.isfinite(alpha) and alpha >= 0 and math.isfinite(beta) and beta > 0):
            raise ValueError(f"{fit['class']} has no latency and bandwidth")
        found[str(fit["class"])] = alpha, beta
    return found


def tells_paths(settings: Mapping[str, Json]) -> bool:
    """Return whether a measurement with these settings shows what a path alone carries."""
    return not settings.get("together") and "tool" not in settings  # imports have no classes
