"""Shows a result of ``measure links`` as text."""

from __future__ import annotations

from collections.abc import Sequence

from base.figures import figure
from measure.envelope import Json, Row


def table(result: Row) -> str:
    """Return the classes with their fits, the groups by size, and what stands out.

    Figures are per class; a group's row has how much it is slower than the fastest.
    """
    if not result["fits"] and any(row.get("test") for row in result["rows"]):
        return _imported(result["rows"])
    parts = [
        _columns(
            ("CLASS", "LATENCY", "BANDWIDTH", "HALF AT"),
            [
                (str(f["class"]), _micro(f["alpha_s"]), _mega(f["beta"]), _size(f["n_half"]))
                for f in result["fits"]
            ],
        )
    ]
    fastest: dict[int, float] = {}
    for g in result["groups"]:
        fastest[g["size"]] = min(g["center"], fastest.get(g["size"], g["center"]))
    parts.append(
        _columns(
            ("SIZE", "GROUP", "PAIRS", "TIME", "CLASSES"),
            [
                (
                    _size(g["size"]),
                    str(g["id"]),
                    str(g["pairs"]),
                    f"{g['center'] / fastest[g['size']]:.2f} x",
                    ", ".join(g["classes"]),
                )
                for g in result["groups"]
            ],
        )
    )
    if result["anomalies"]:
        parts.append(
            _columns(
                ("STANDS OUT", "RATIO", "WHY", "LIGHT"),
                [
                    (str(a["object"]), f"{a['ratio']:.2f}", str(a["evidence"]), _light(a))
                    for a in result["anomalies"]
                ],
            )
        )
    lost = {
        (str(r["from"]), str(r["to"]), str(r["reason"])) for r in result["rows"] if r.get("reason")
    }
    if lost:
        parts.append(_columns(("FROM", "TO", "NOT MEASURED"), sorted(lost)))
    return "\n\n".join(parts) + "\n"


def _imported(rows: Sequence[Row]) -> str:
    """Return what another tool measured."""
    shown = []
    for row in rows:
        latency, bandwidth = row["latency_s"], row["bandwidth"]
        shown.append(
            (
                str(row["test"]),
                _size(row["size"]),
                _micro(latency["median"]) if latency else "-",
                _mega(bandwidth["median"]) if bandwidth else "-",
            )
        )
    return _columns(("TEST", "SIZE", "LATENCY", "BANDWIDTH"), shown) + "\n"


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = (
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in (head, *rows)
    )
    return "\n".join(line.rstrip() for line in lines)


def _light(anomaly: Row) -> str:
    """Return the power that enters each port of its path: a dirty connector lowers it."""
    levels = [
        f"{level['port']} {level['power_in_dbm']:.1f} dBm"
        for level in anomaly.get("light", ())
        if level.get("power_in_dbm") is not None
    ]
    return ", ".join(levels) or "-"


def _micro(seconds: Json) -> str:
    return f"{1e6 * seconds:.1f} us"


def _mega(rate: Json) -> str:
    return f"{rate / 1e6:.1f} MB/s"


def _size(count: Json) -> str:
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{figure(count / factor, 4)} {unit}"
    return f"{count:.0f} B"
