"""Optical power over time, for ``trace --since``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from console.cli.show.text import NONE, sparkline, thinned

Document = dict[str, Any]
LIGHT_HEADS = ("AT", "LIGHT", "LEAST DBM", "MOST DBM", "LAST DBM", "HISTORY")
_WIDTH = 48
_LEAST_SPAN_DB = 1.0
"""A smaller range is noise and is not scaled up to the full height."""


def light_rows(history: Sequence[Document]) -> list[tuple[object, ...]]:
    """Return two rows a port: the light into the switch and the light out of it."""
    rows: list[tuple[object, ...]] = []
    for series in history:
        for word in ("in", "out"):
            values = series[f"power_{word}_dbm"]
            known = [v for v in values if v is not None]
            if not known:
                rows.append((_at(series), word, NONE, NONE, NONE, "not measured"))
                continue
            floor = min(*known, max(known) - _LEAST_SPAN_DB)
            last = NONE if values[-1] is None else f"{values[-1]:.2f}"
            line = sparkline(thinned(values, _WIDTH), floor)
            rows.append((_at(series), word, f"{min(known):.2f}", f"{max(known):.2f}", last, line))
    return rows


def _at(series: Document) -> str:
    return f"{series['switch']}/{series['port']}"
