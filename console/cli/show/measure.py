"""Shows measurements: their summary, and the tables of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from base.figures import figure
from console.cli.show import output as out
from console.cli.show.text import NONE, percent, plural, size

Document = dict[str, Any]

MOST_ROWS = 200
"""Rows of one table that people are shown; ``-o json`` has all."""
_OF_PROGRAMS = frozenset({"known", "plan"})
"""Of a summary: what another comparison and ``apply`` read. ``-o json`` has it."""
_TABLES = ("rows", "groups", "fits", "anomalies")


def show_measurement(view: Document, tables: Callable[[Document], str | None]) -> None:
    """Print a measurement with its result; ``tables`` draws the result of a kind of its own.

    It returns None for the general tables.
    """
    out.show_table(("", ""), list(_head(view)), head=False)
    result = view.get("result")
    if result is None:
        runs = view.get("runs") or []
        if runs:
            out.line("")
            _table("runs", runs)
        return
    drawn = tables(result)
    if drawn is not None:
        out.line("")
        for line in drawn.rstrip("\n").splitlines():
            out.line(line)
    else:
        for name in _TABLES:
            if result[name]:
                out.line("")
                _table(name, result[name])
    pairs = [(_label(k), cell(k, v)) for k, v in result["summary"].items() if k not in _OF_PROGRAMS]
    if pairs:
        out.line("")
        out.line("summary:")
        out.show_table(("", ""), pairs, head=False)
    for reason in result["invalid_because"]:
        out.message(f"not valid: {reason}")


def _head(view: Document) -> Sequence[tuple[object, object]]:
    result = view.get("result") or {}
    tool = result.get("tool") or {}
    environment = result.get("environment") or {}
    where = [
        f"kernel {environment['kernel']}" if environment.get("kernel") else "",
        f"mtu {environment['mtu']}" if environment.get("mtu") else "",
        f"load {figure(environment['load_1m'], 2)}"
        if environment.get("load_1m") is not None
        else "",
    ]
    progress = view.get("progress")
    return [
        ("measurement", f"{view['id'] or '(dry run)'} ({view['type']})"),
        ("state", f"{view['state']}{': ' + view['reason'] if view['reason'] else ''}"),
        *([("progress", progress_text(progress))] if progress and not result else []),
        *([("valid", "yes" if result["valid"] else "no")] if result else []),
        ("endpoints", " ".join(view["endpoints"]) or NONE),
        *([("source", result["source"])] if result else []),
        *([("tool", f"{tool['name']} {tool['version']}".strip())] if tool else []),
        *([("seed", result["seed"])] if result else []),
        *([("where", ", ".join(filter(None, where)))] if any(where) else []),
    ]


def progress_text(progress: Mapping[str, Any]) -> str:
    """Return how far a measurement is: ``12 of 40, gpu0 to gpu3``."""
    text = f"{progress['done']} of {progress['total']}"
    return f"{text}, {progress['text']}" if progress.get("text") else text


def _table(name: str, rows: Sequence[Document]) -> None:
    columns = list(dict.fromkeys(key for row in rows[:MOST_ROWS] for key in row))
    out.line(f"{name}:")
    out.show_table(
        [_label(column).upper() for column in columns],
        [[cell(column, row.get(column)) for column in columns] for row in rows[:MOST_ROWS]],
    )
    if len(rows) > MOST_ROWS:
        out.message(f"{plural(len(rows) - MOST_ROWS, 'row')} more: use -o json")


def cell(key: str, value: Any) -> str:  # noqa: PLR0911 - one form a line
    """Format a figure of a result; its name ends with the unit."""
    if value is None or value in ("", [], {}):
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        if "median" in value and "ci" in value:
            low, high = value["ci"]
            return f"{cell(key, value['median'])} [{cell(key, low)} {cell(key, high)}]"
        return " ".join(f"{name}={cell(str(name), item)}" for name, item in value.items())
    if isinstance(value, list):
        return ",".join(cell(key, item) for item in value)
    if isinstance(value, str):
        return value
    return _number(key, value)


def _number(key: str, value: float) -> str:  # noqa: PLR0911 - one form a line
    if key.endswith("_samples_s"):
        return f"{figure(value, 4)} samples/s"
    if key.endswith(("_s", "_ci")) and not key.endswith("per_s"):
        return _seconds(value)
    if key in _RATES or key.endswith(("bytes_per_s", "_bw", "_busbw", "_algbw", "io_limit_bps")):
        return f"{figure(value / 1e6, 4)} MB/s"
    if key.endswith("_bps"):
        return f"{figure(value / 1e6, 4)} Mbit/s"
    if key in _SIZES or key.endswith("_bytes"):
        return size(value)
    if key.endswith(("_share", "efficiency", "change")) or key in _SHARES:
        return percent(value)
    return figure(value, 6) if isinstance(value, float) else str(value)


_RATES = frozenset({"bandwidth", "beta", "busbw", "algbw"})
_SIZES = frozenset({"size", "bytes", "io_bytes", "n_half"})
_SHARES = frozenset({"au", "residual", "within", "error", "worst_error", "of_limit"})


def _seconds(value: float) -> str:
    if abs(value) >= 1.0:
        return f"{figure(value, 4)} s"
    return f"{figure(value * 1e3, 4)} ms" if abs(value) >= 1e-3 else f"{figure(value * 1e6, 4)} us"


def _label(key: str) -> str:
    for unit in ("_bytes_per_s", "_bps", "_bytes", "_s"):
        key = key.removesuffix(unit)
    return key.replace("_", " ")
