"""Shows who limits a training, and samples a second by memory and disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from base.figures import figure
from measure.envelope import Json, Row
from measure.storage.tables import size

_HEAD = ("memory", "disk", "ceiling", "model", "together", "of ceiling", "wait", "AU", "limit")


def table(result: Row) -> str:
    """Return a result's rows with the verdict and its remedy; samples/s by memory and disk.

    The second table is there where several limits of both were measured.
    """
    rows: Sequence[Row] = result.get("rows", ())
    lines = [_line(_HEAD), *(_line(_cells(row)) for row in rows)]
    for row in rows:
        text = row.get("remedy") or row.get("reason")
        if text:
            lines.append(f"  {_memory(row)}, {_disk(row)}: {text}")
    memories = list(dict.fromkeys(_memory(row) for row in rows))
    disks = list(dict.fromkeys(_disk(row) for row in rows))
    if len(memories) > 1 and len(disks) > 1:
        lines += ["", "together, samples/s", _line(("memory", *disks))]
        at = {(_memory(row), _disk(row)): row.get("together_samples_s") for row in rows}
        lines += [
            _line((memory, *(_figure(at.get((memory, disk))) for disk in disks)))
            for memory in memories
        ]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "  " + " ".join(f"{cell:>11}" for cell in cells).rstrip()


def _cells(row: Row) -> tuple[str, ...]:
    sure = "" if row.get("certain") in (True, None) else "?"
    return (
        _memory(row),
        _disk(row),
        *(_figure(row.get(f"{name}_samples_s")) for name in ("ceiling", "model", "together")),
        *(_figure(row.get(name), _share) for name in ("to_ceiling", "wait_share", "au")),
        f"{row.get('limit') or '-'}{sure}",
    )


def _share(value: float) -> str:
    return f"{value:.1%}"


def _rate(value: float) -> str:
    return f"{value:.1f}"


def _figure(value: Json, form: Callable[[float], str] = _rate) -> str:
    return "-" if value is None else form(value)


def _memory(row: Row) -> str:
    value = row.get("memory_bytes")
    return size(value) if value else "all memory"


def _disk(row: Row) -> str:
    value = row.get("io_limit_bps")
    return f"{figure(value / 1e6, 6)} MB/s" if value else "no limit"
