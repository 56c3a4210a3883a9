"""nccl-tests' text table, column for column (``src/util.cu`` of releases with ``-J``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_RULE = "#\n"
_OVER = f"# {'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}" + (
    "           out-of-place                       in-place          \n"
)
_TIME_WIDTH, _RATE_WIDTH = 7, 6


@dataclass(slots=True, frozen=True)
class Half:
    """One timing of a line: out of place or in place. Units are nccl-tests' own."""

    time_us: float
    algbw_gbs: float
    busbw_gbs: float
    wrong: float | None
    """Differing elements; None without a check."""


@dataclass(slots=True, frozen=True)
class TableRow:
    """One line of the table; a half that does not exist is None."""

    size: int
    count: int
    type: str
    redop: str
    root: int
    out_of_place: Half | None
    in_place: Half | None


def text(entries: Sequence[TableRow], out_of_bounds: int, average_gbs: float) -> str:
    """Return header, lines and the two lines of the summary."""
    header = _line(
        ("size", "count", "type", "redop", "root"), ("time", "algbw", "busbw", "#wrong")
    ) + _line(("(B)", "(elements)", "", "", ""), ("(us)", "(GB/s)", "(GB/s)", ""))
    verdict = "FAILED" if out_of_bounds else "OK"
    return (
        f"{_RULE}{_OVER}{header}{''.join(map(_entry, entries))}"
        f"# {'Out of bounds values':<20} : {out_of_bounds} {verdict}\n"
        f"# {'Avg bus bandwidth':<20} : {average_gbs:g} \n"
    )


def average_busbw(entries: Sequence[TableRow]) -> float:
    """Return the mean over all halves in GB/s, 0 without any: nccl-tests' summary."""
    halves = [half for e in entries for half in (e.out_of_place, e.in_place) if half]
    return sum(half.busbw_gbs for half in halves) / len(halves) if halves else 0.0


def _line(names: tuple[str, ...], half: tuple[str, ...]) -> str:
    size, count, kind, redop, root = names
    twice = "".join(
        f"  {time:>7}  {alg:>6}  {bus:>6}  {wrong:>6}" for time, alg, bus, wrong in (half,) * 2
    )
    return f"# {size:>10}  {count:>12}  {kind:>8}  {redop:>6}  {root:>6}{twice} \n"


def _entry(entry: TableRow) -> str:
    return (
        f"{entry.size:>12}  {entry.count:>12}  {entry.type:>8}  {entry.redop:>6}  "
        f"{entry.root:>6}{_half(entry.out_of_place)}{_half(entry.in_place)}\n"
    )


def _half(half: Half | None) -> str:
    if half is None:
        return f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"
    wrong = f"{half.wrong:6g}" if half.wrong is not None else "   N/A"
    return (
        f"  {number(half.time_us, _TIME_WIDTH)}  {number(half.algbw_gbs, _RATE_WIDTH)}"
        f"  {number(half.busbw_gbs, _RATE_WIDTH)}  {wrong}"
    )


def number(value: float, width: int) -> str:
    """Return a number with as many decimals, two at most, as fit into ``width``."""
    if not math.isfinite(value):
        return f"{value:{width}.2f}"
    digits = 0
    while value >= 10**digits:
        digits += 1
    for decimals, most in ((2, width - 3), (1, width - 2), (0, width)):
        if digits <= most:
            return f"{value:{width}.{decimals}f}"
    return f"{value:{width}.1e}" if width >= _TIME_WIDTH else f"{value:{width}.0e}"
