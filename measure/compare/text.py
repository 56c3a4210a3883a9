"""A comparison as a table for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from base.figures import figure
from measure.envelope import Row

_HEADS = (
    *("placement", "span", "cross", "ring rate", "step predicted", "measured", "error"),
    *("change", "util", "uplink", "moves", "leaves", ""),
)


def text_of(result: Row) -> str:
    """Return the table and the recommendation."""
    summary = result["summary"]
    best, within = summary.get("recommended"), 100 * float(summary.get("within") or 0.0)
    cells = [list(_HEADS), *(_cells(row, best, within) for row in result["rows"])]
    widths = [max(len(line[i]) for line in cells) for i in range(len(_HEADS))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells]
    lines.append("")
    if best is None:
        lines.append(f"no recommendation: {summary.get('because')}")
    else:
        doubt = "; open: its interval does not exclude a better one" if summary.get("open") else ""
        lines.append(f"recommended: {best}, because {summary.get('because')}{doubt}")
    return "\n".join(line.rstrip() for line in lines)


def _cells(row: Mapping[str, Any], best: str | None, within: float) -> list[str]:
    measured = row.get("measured_step_s")
    mark = "← recommended" if row["placement"] == best else ""
    if not mark and row.get("within") is not None:
        mark = f"within {figure(within, 6)} %: {'yes' if row['within'] else 'no'}"
    return [
        str(row["placement"]),
        str(row["span"]),
        str(row["crossings"]),
        _plain(row.get("ring_rate"), "{:.2f}"),
        _range(row.get("predicted_step_s")),
        f"{figure(measured['median'])} s" if measured else "-",
        _percent(row.get("error"), "{:.1f} %"),
        _percent(row.get("change"), "{:+.0f} %"),
        _percent(row.get("util"), "{:.0f} %"),
        "-" if row.get("uplink_bytes_s") is None else f"{figure(row['uplink_bytes_s'] / 1e6)} MB/s",
        str(row["moves"]),
        str(row["leaves"]),
        mark,
    ]


def _range(value: Mapping[str, float] | None) -> str:
    if value is None:
        return "-"
    low, high = value["low"], value["high"]
    if high - low <= 0.005 * high:
        return f"{figure((low + high) / 2)} s"
    return f"{figure(low)} … {figure(high)} s"


def _plain(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _percent(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(100 * value)
