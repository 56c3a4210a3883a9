"""``describe``: an object's fields, its parts and its events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from base.figures import figure
from console.cli.show import advice
from console.cli.show import output as out
from console.cli.show.kinds import find
from console.cli.show.text import (
    NONE,
    age,
    celsius,
    hertz,
    names,
    percent,
    plural,
    rate,
    size,
    spread,
    watts,
)

Document = dict[str, Any]

_TABLES: Mapping[str, tuple[str, ...]] = {
    "ranks": (
        "rank",
        "endpoint",
        "home",
        "server",
        "state",
        "exit_code",
        "rx_bps",
        "tx_bps",
        "utilisation",
        "dark_time_s",
    ),
    "conditions": ("type", "status", "since", "reason", "message"),
    "ports": (
        "port",
        "kind",
        "far",
        "endpoint",
        "up",
        "quarantined",
        "rx_bps",
        "tx_bps",
        "readings",
    ),
    "phases": ("name", "started_at", "took_s"),
    "moves": ("endpoint", "from", "to"),
    "volumes": ("volume", "path", "read_only"),
    "data": (
        "project",
        "job",
        "bytes",
        "files",
        "quota_bytes",
        "created_at",
        "used_at",
        "used_by",
        "kept_until",
    ),
}
"""Fields that contain a list of objects, and the columns of each."""

_SECTIONS = frozenset(
    {"wait", "placement", "steps", "gpu", "failure", "checkpoint", "engine", "readings"}
)
"""Fields that contain one object, which gets its own heading."""


def print_object(title: str, name: str, item: Document, events: Sequence[Document]) -> None:
    """Print one object with its parts and events."""
    parts = {
        key: value for key, value in item.items() if key in _TABLES and isinstance(value, list)
    }
    sections = {
        key: value for key, value in item.items() if key in _SECTIONS and isinstance(value, dict)
    }
    rows: list[tuple[object, object]] = [("kind", title), ("name", name)]
    rows += [
        (_label(key), value_text(key, value))
        for key, value in item.items()
        if key not in {"name", *parts, *sections} and not (key in _SECTIONS and value is None)
    ]
    out.show_table(("", ""), rows, head=False)
    for key, section in sections.items():
        out.line("")
        out.line(f"{key}:")
        lines = section.get("lines")
        inside = [
            (_label(name), value_text(name, value))
            for name, value in section.items()
            if name != "lines"
        ]
        out.show_table(("", ""), inside, head=False)
        if lines:
            out.line("")
            out.line(f"last lines of rank {section['rank']}:")
            for line in lines:
                out.line(f"  {line}")
    for key, listed in parts.items():
        entries = [_timed(entry) for entry in listed]
        columns = [c for c in _TABLES[key] if any(c in entry for entry in entries)]
        if entries:
            out.line("")
            out.line(f"{key}:")
            out.show_table(
                [_label(c).upper() for c in columns],
                [[value_text(c, entry.get(c)) for c in columns] for entry in entries],
            )
    if events:
        kind = find("event")
        out.line("")
        out.line("events:")
        out.show_table(*kind.table(events, wide=False))


def value_text(key: str, value: Any) -> str:
    """Format one field; its name ends with the unit."""
    if value is None or value in ("", [], {}):
        return "dark" if key in _HOMES and value is None else NONE
    form = _FORMS.get(key)
    if form is None and not isinstance(value, dict | list | bool):
        form = next((f for suffix, f in _UNITS.items() if key.endswith(suffix)), None)
    return form(value) if form else _by_type(value)


def _by_type(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(f"{name}={_by_type(entry)}" for name, entry in value.items())
    if isinstance(value, list):
        return names(value)
    return figure(value, 6) if isinstance(value, float) else str(value)


def _moment(value: float) -> str:
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    passed = time.time() - value
    return f"{written} (in {age(-passed)})" if passed < 0 else f"{written} ({age(passed)} ago)"


def _command(value: Any) -> str:
    return value if isinstance(value, str) else " ".join(value)


def _hint(plan: Any) -> str:
    """Describe a regroup that would make room for a waiting job."""
    jobs = names(plan["jobs_paused"]) if plan["jobs_paused"] else "no job"
    return (
        f"{plural(plan['running_moves'], 'running endpoint')} of {plan['moves']} moved, stalling"
        f" {jobs}: {plan['command']}"
    )


_HOMES = frozenset({"home", "from", "to"})
_FORMS: Mapping[str, Callable[[Any], str]] = {
    "bytes": size,
    "kept_until": _moment,
    "utilisation": percent,
    "since": _moment,
    "spread": spread,
    "command": _command,
    "earliest_start": _moment,
    "fragmentation": percent,
    "busy_fraction": percent,
    "stranded": lambda shares: ", ".join(f"{percent(v)} for {k}" for k, v in shares.items()),
    "plan": _hint,
    "io_bps": lambda bytes_per_s: f"{size(bytes_per_s)}/s",
    "homes": lambda homes: (
        advice.spans(homes)
        if isinstance(homes, dict)
        else names([home or "dark" for home in homes])
    ),
    "step_s": advice.step,
    "local": lambda local: (
        f"{size(local['size_bytes'])} of {local['where']} a rank, {plural(local['keep'], 'step')}"
        " kept"
    ),
    "copies": lambda copies: (
        f"{copies['scheme']}, apart by {copies['apart']}"
        + (f", sets of {copies['set_size']}" if copies["scheme"] == "xor" else "")
    ),
    "shared": lambda shared: f"{shared['store']}, every {shared['every']} complete steps",
    "error": lambda error: advice.error({"error": error}) if isinstance(error, float) else error,
}
_UNITS: Mapping[str, Callable[[Any], str]] = {
    "_bps": rate,
    "_bytes": size,
    "_at": _moment,
    "_s": lambda seconds: f"{seconds:.3f} s",
    "_c": celsius,
    "_w": watts,
    "_hz": hertz,
}


def _timed(entry: Document) -> Document:
    """Add how long a phase took; leave out readings that nothing reports."""
    if "readings" in entry and not entry["readings"]:
        entry = {key: value for key, value in entry.items() if key != "readings"}
    if entry.get("started_at") is None or "finished_at" not in entry:
        return entry
    end = entry["finished_at"]
    return {**entry, "took_s": None if end is None else end - entry["started_at"]}


def _label(key: str) -> str:
    for unit in ("_bps", "_bytes", "_s", "_c", "_w", "_hz"):
        key = key.removesuffix(unit)
    return key.replace("_", " ")
