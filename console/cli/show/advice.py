"""Formats steps, their changes and predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from base.figures import figure
from console.cli.show.text import NONE, percent

Range = Mapping[str, float]
_EXACT = 0.005
"""An interval narrower than this, relatively, is shown as one figure."""


def step(value: float | Range | None) -> str:
    """Format a step, or an interval of it: ``0.402 s``, ``0.58 … 0.61 s``."""
    if value is None:
        return NONE
    if isinstance(value, float | int):
        return f"{figure(value)} s"
    low, high = value["low"], value["high"]
    if high - low <= _EXACT * high:
        return f"{figure((low + high) / 2)} s"
    return f"{figure(low)} … {figure(high)} s"


def step_change(value: Range | None) -> str:
    """Format a relative change: ``-50 %``, ``-50 … -38 %``."""
    if value is None:
        return "not known"
    low, high = 100 * value["low"], 100 * value["high"]
    if high - low < 1:
        return f"{(low + high) / 2:+.0f} %"
    return f"{low:+.0f} … {high:+.0f} %"


def gain(value: Range | None) -> str:
    """Format what a remedy saves: ``saves 30 % of a step``."""
    if value is None:
        return ""
    low, high = value["low"], value["high"]
    if high - low < 0.01:
        return f"saves {percent(high)} of a step"
    if low < 0.005:
        return f"saves up to {percent(high)} of a step"
    return f"saves {100 * low:.0f} to {percent(high)} of a step"


def spans(homes: Mapping[str, str | None]) -> str:
    """Format homes by aggregator: ``as0:gpu0+gpu1 as1:gpu2``."""
    by_home: dict[str, list[str]] = {}
    for endpoint, home in homes.items():
        by_home.setdefault(home or "dark", []).append(endpoint)
    return " ".join(f"{home}:{'+'.join(names)}" for home, names in sorted(by_home.items())) or NONE


def unpredicted(items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what is missing where no step is predicted, and what makes a first prediction."""
    if not items:
        yield (
            "a plan that moves the light of a running job makes one, and so does: lightloom whatif"
            " JOB --homes ENDPOINT=AGGREGATOR"
        )
    for item in items:
        if item["state"] == "open" and item["step_s"] is None and item["basis"]:
            yield f"{item['id']}: {item['basis'][-1]}"


def error(item: Mapping[str, Any]) -> str:
    """Format a prediction's error."""
    found = item.get("error")
    return NONE if found is None else f"{100 * found:.1f} %"
