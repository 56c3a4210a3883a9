"""Rows of collectives from what ranks printed. Every field is checked: jobs write these lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from measure.collectives.definitions import CollectiveOperation, algbw, busbw
from measure.envelope import Json, Row
from measure.statistics import median, summarise
from scheduler import ring

DISTURBED = 0.25
"""Repetitions that differ by more than this share of their median were disturbed."""
MOST_TIMES = 1000
MOST_TEXT = 300
LEAST_S, MOST_S = 1e-9, 86_400.0
"""Times outside these do not count."""
_RINGS = frozenset(
    {
        CollectiveOperation.ALL_REDUCE,
        CollectiveOperation.ALL_GATHER,
        CollectiveOperation.REDUCE_SCATTER,
        CollectiveOperation.SENDRECV,
    }
)
"""Operations that load each edge of the ring equally."""


@dataclass(slots=True, frozen=True)
class PointTiming:
    """One rank's line about one point."""

    operation: str
    size: int
    count: int
    iterations: int | None
    times_s: tuple[float, ...]
    wrong: int | None
    note: str
    reason: str


@dataclass(slots=True, frozen=True, kw_only=True)
class GroupSetting:
    """What the points of one group have in common."""

    placement: str
    group: int
    order: Sequence[str]
    homes: Mapping[str, str | None]
    rate: float | None
    """Bytes/s that the links give to the group's ring."""
    framework: str
    average: str
    check: bool
    repetitions: int


@dataclass(slots=True, frozen=True)
class Made:
    """A row, whether repetitions are missing, and its wrong elements."""

    row: Row
    missing: bool
    wrong: int


def timing(record: Row) -> PointTiming | None:
    """Parse one line; None unless it is about a collective and sound."""
    if record.get("probe") != "collective":
        return None
    operation, size, count = (record.get(name) for name in ("operation", "size", "count"))
    if not isinstance(operation, str) or not _whole(size) or not _whole(count):
        return None
    times, wrong = record.get("times_s", []), record.get("wrong")
    iterations = record.get("iterations")
    if not isinstance(times, list) or len(times) > MOST_TIMES or not all(map(_time, times)):
        return None
    return PointTiming(
        operation,
        size,
        count,
        iterations if _whole(iterations) else None,
        tuple(map(float, times)),
        wrong if _whole(wrong) else None,
        _text(record.get("note")),
        _text(record.get("reason")),
    )


def row(
    where: GroupSetting,
    point: tuple[str, int, int],
    timings: Sequence[PointTiming | None],
    reason: str,
) -> Made:
    """Return the row of a point from the lines of the group's ranks, in their order.

    ``reason`` is why the run did not complete. A point that a rank did not report, or that the
    framework does not have, has a reason instead of figures.
    """
    name, size, count = point
    operation = CollectiveOperation(name)
    told = [one for one in timings if one is not None]
    unable = next((one.reason for one in told if one.reason), "")
    short = [one for one in timings if one is None or len(one.times_s) < where.repetitions]
    half: Row | None = None
    slowest: float | None = None
    disturbed: bool | None = None
    if not unable and len(told) == len(timings) and all(one.times_s for one in told):
        half, slowest, disturbed = _half(operation, size, told, where)
    share = None
    if half is not None and where.rate and operation in _RINGS:
        share = half["bus_bw"] / where.rate
    in_place = operation.in_place and where.framework == "torch"
    made = {
        "operation": name,
        "placement": where.placement,
        "group": where.group,
        "ranks": len(timings),
        "order": list(where.order),
        "homes": [where.homes.get(endpoint) for endpoint in where.order],
        "crossings": ring.crossings(where.order, where.homes),
        "size": size,
        "count": count,
        "type": "float",
        "redop": operation.redop,
        "root": operation.root,
        "out_of_place": None if in_place else half,
        "in_place": half if in_place else None,
        "iterations": told[0].iterations if half is not None else None,
        "time_max_s": slowest,
        "link_share": share,
        "disturbed": disturbed,
        "note": next((one.note for one in told if one.note), ""),
        "reason": "" if half is not None else unable or _silent(timings, reason),
    }
    wrong = half["nwrong"] if half is not None and half["nwrong"] else 0
    return Made(made, bool(short) and not unable, wrong)


def _half(
    operation: CollectiveOperation, size: int, told: Sequence[PointTiming], where: GroupSetting
) -> tuple[Row, float, bool]:
    """Return figures of the measured half, the slowest rank's time and whether it was disturbed.

    Each repetition is averaged over ranks; the result is the median of the repetitions.
    """
    ranks = len(told)
    repetitions = list(zip(*(one.times_s for one in told), strict=False))
    times = [_over_ranks(each, where.average) for each in repetitions]
    summary = summarise(times)
    if summary is None:
        raise ValueError("a half has repetitions")
    wrongs = [one.wrong for one in told]
    checked = where.check and None not in wrongs
    middle = summary.median
    half = {
        "time_s": middle,
        "time_ci": [summary.low, summary.high],
        "alg_bw": algbw(size, middle),
        "bus_bw": busbw(operation, size, middle, ranks),
        "nwrong": sum(wrong or 0 for wrong in wrongs) if checked else None,
        "n": summary.n,
    }
    spread = (summary.max - summary.min) / middle
    return half, median([max(each) for each in repetitions]), spread > DISTURBED


def _over_ranks(times: Sequence[float], average: str) -> float:
    if average == "min":
        return min(times)
    return max(times) if average == "max" else sum(times) / len(times)


def _silent(timings: Sequence[PointTiming | None], reason: str) -> str:
    ranks = [str(rank) for rank, one in enumerate(timings) if one is None or not one.times_s]
    return reason or f"no line of rank {', '.join(ranks[:8])}"


def _whole(value: Json) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _time(value: Json) -> bool:
    sound = isinstance(value, int | float) and not isinstance(value, bool)
    return sound and math.isfinite(value) and LEAST_S <= value <= MOST_S


def _text(value: Json) -> str:
    if not isinstance(value, str):
        return ""
    return "".join(c if c.isprintable() else "?" for c in value[:MOST_TEXT])
