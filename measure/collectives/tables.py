"""Prints a result of collectives: nccl-tests' table for each operation and ring."""

from __future__ import annotations

from collections.abc import Mapping

from measure.collectives.table import Half, TableRow, average_busbw, text
from measure.envelope import Json, Row

_DECIMALS = 6
_FAST = 1e9
"""Above this busbw, bytes/s, two decimals of GB/s suffice."""


def table(result: Mapping[str, Json]) -> str:
    """Return a result as text; what nccl-tests has no column for is in lines that begin with #."""
    blocks: dict[tuple[Json, ...], list[Row]] = {}
    for one in result["rows"]:
        key = (one["operation"], one["placement"], one["ranks"], one["group"])
        blocks.setdefault(key, []).append(one)
    return "\n".join(_block(rows) for rows in blocks.values())


def entry(one: Row) -> TableRow:
    """Return a row in nccl-tests' units."""
    return TableRow(
        one["size"],
        one["count"],
        one["type"],
        one["redop"],
        one["root"],
        _half(one["out_of_place"]),
        _half(one["in_place"]),
    )


def _half(half: Row | None) -> Half | None:
    if half is None or None in (half["time_s"], half["alg_bw"], half["bus_bw"]):
        return None
    wrong = half["nwrong"]
    # Rounded as nccl-tests' own JSON is, so that a figure from there is printed as it was.
    return Half(
        round(half["time_s"] * 1e6, _DECIMALS),
        round(half["alg_bw"] / 1e9, _DECIMALS),
        round(half["bus_bw"] / 1e9, _DECIMALS),
        float(wrong) if wrong is not None else None,
    )


def _block(rows: list[Row]) -> str:
    first = rows[0]
    entries = [entry(one) for one in rows]
    bad = sum(
        1
        for e in entries
        for half in (e.out_of_place, e.in_place)
        if half is not None and half.wrong
    )
    return _title(first) + text(entries, bad, average_busbw(entries)) + _remarks(rows)


def _title(first: Row) -> str:
    title = f"# {first['operation']}"
    if first["placement"] is not None:
        title += f": {first['placement']}, {first['ranks']} ranks, {first['crossings']} crossings"
        title += f", group {first['group']}\n# ring: {' '.join(first['order'])}"
    return title + "\n"


def _remarks(rows: list[Row]) -> str:
    """Return the share of the slowest link and the slowest rank, size by size, and notes."""
    lines = []
    for one in rows:
        parts = []
        half = one["in_place"] or one["out_of_place"]
        if one["placement"] is not None and half is not None and half["bus_bw"] < _FAST:
            parts.append(f"busbw {half['bus_bw'] / 1e6:.2f} MB/s")
        if one["link_share"] is not None:
            parts.append(f"{one['link_share']:.1%} of the slowest link")
        if one["time_max_s"] is not None:
            parts.append(f"slowest rank {one['time_max_s'] * 1e6:.1f} us")
        if one["disturbed"]:
            parts.append("disturbed: its repetitions differ by more than a quarter")
        parts += [one[name] for name in ("note", "reason") if one[name]]
        if parts:
            lines.append(f"# {one['size']:>10}: {'; '.join(parts)}\n")
    return "".join(lines)
