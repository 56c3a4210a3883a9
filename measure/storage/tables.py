"""Shows storage results as people compare them: throughput by workers and size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from base.figures import figure
from measure.envelope import Json, Row

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def size(value: int) -> str:
    """Return ``64 KiB`` for 65536."""
    for factor, unit in _UNITS:
        if value >= factor and value % factor == 0:
            return f"{value // factor} {unit}"
    return f"{value} B"


def table(result: Row) -> str:
    """Return a result's rows: MB/s by workers and size, latency and processor at the best point.

    One block for each server, limit, direction and path.
    """
    blocks: dict[tuple[Json, ...], list[Row]] = {}
    for row in result.get("rows", ()):
        blocks.setdefault(_arm(row), []).append(row)
    return "\n\n".join(_block(key, rows) for key, rows in blocks.items())


def _arm(row: Row) -> tuple[Json, ...]:
    names = ("server", "io_limit_bps", "memory_bytes", "rw", "path")
    return tuple(row.get(name) for name in names)


def _block(key: tuple[Json, ...], rows: Sequence[Row]) -> str:
    server, io_bps, memory, rw, path = key
    head = [str(server or "file"), str(rw), str(path)]
    if io_bps:
        head.append(f"limit {figure(io_bps / 1e6, 6)} MB/s")
    if memory:
        head.append(f"memory {size(memory)}")
    sizes = sorted({row["io_bytes"] or 0 for row in rows})
    counts = sorted({row["workers"] or 0 for row in rows})
    at = {(row["workers"] or 0, row["io_bytes"] or 0): row for row in rows}
    lines = [", ".join(head) + " (MB/s)"]
    lines.append("  workers" + "".join(f"{size(value):>10}" for value in sizes))
    for count in counts:
        cells = [_rate(at.get((count, value))) for value in sizes]
        lines.append(f"  {count:>7}" + "".join(f"{cell:>10}" for cell in cells))
    best = max(rows, key=lambda row: row["bytes_per_s"] or 0.0)
    if best["bytes_per_s"] is not None:
        lines.append(f"  best: {_best(best)}")
    lines += [f"  {count} points: {why}" for why, count in _reasons(rows).items()]
    return "\n".join(lines)


def _rate(row: Row | None) -> str:
    rate = None if row is None else row["bytes_per_s"]
    return "-" if rate is None else f"{rate / 1e6:.1f}"


def _best(row: Row) -> str:
    parts = [f"{row['workers']} workers of {size(row['io_bytes'])}"]
    latency = row["latency_s"] or {}
    if (p99 := latency.get("p99")) is not None:
        parts.append(f"p99 {figure(p99 * 1e3)} ms")
    for name, what in (("cpu_cores", "container"), ("server_cpu_cores", "server")):
        if row.get(name) is not None:
            parts.append(f"{row[name]:.2f} cores ({what})")
    if row.get("cached_share") is not None:
        parts.append(f"{row['cached_share']:.1%} from memory")
    return ", ".join(parts)


def _reasons(rows: Sequence[Row]) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        if row["bytes_per_s"] is None:
            why = row.get("reason") or "not measured"
            counts[why] = counts.get(why, 0) + 1
    return counts
