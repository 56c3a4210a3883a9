"""Reads the lines that the probe of links printed: hostile text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from measure.envelope import Json, Row
from measure.kinds import Line
from measure.links.settings import MOST_SIZE
from measure.statistics import Summary, median, summarise

MOST_VALUES = 64
"""Sizes of one line that are believed."""

Ordered = tuple[int, int]
"""Sender and receiver."""
Key = tuple[int, int, int]
"""Sender, receiver and bytes."""


@dataclass(slots=True, frozen=True)
class PairPoint:
    """One ordered pair at one size."""

    latency: Summary | None
    bandwidth: Summary | None
    seconds: float
    """One way: the latency, or bytes over bandwidth."""
    repetitions: tuple[float, ...]

    @property
    def fastest_s(self) -> float:
        """The fastest plausible repetition: what disturbs a machine slows it.

        Bandwidth is an exception: a sender that stood still while its buffer drained counts what
        refills the buffer as sent, and is faster than the path. So its second fastest counts.
        """
        ordered = sorted(self.repetitions)
        doubtful = self.bandwidth is not None and len(ordered) > 2
        return ordered[1] if doubtful else ordered[0]


def points(
    lines: Sequence[Line], count: int, repetitions: int, sizes: Sequence[int]
) -> tuple[dict[Key, PairPoint], dict[Ordered, str]]:
    """Return what rank 0 printed of ``sizes``; of each repetition the first value counts."""
    latency: dict[Key, dict[int, float]] = {}
    rates: dict[Key, dict[int, float]] = {}
    reasons: dict[Ordered, str] = {}
    for line in lines:
        record = line.record
        if line.rank != 0 or record.get("probe") != "pair":
            continue
        pair, number = pair_of(record, count), number_of(record, repetitions)
        if pair is None or number is None:
            continue
        if isinstance(reason := record.get("reason"), str):
            reasons.setdefault(pair, reason[:300])
        for name, into in (("latency_s", latency), ("bandwidth", rates)):
            for size, value in _values(record.get(name)):
                if size not in sizes:
                    continue
                into.setdefault((*pair, size), {}).setdefault(number, value)
    found = {}
    for key in {*latency, *rates}:
        one, many = list(latency.get(key, {}).values()), list(rates.get(key, {}).values())
        times = tuple(key[2] / value for value in many) if many else tuple(one)
        found[key] = PairPoint(summarise(one), summarise(many), median(times), times)
    return found, reasons


def pair_of(record: Row, count: int) -> Ordered | None:
    """Return the sender and receiver of a line; None unless they are two of ``count`` ranks."""
    a, b = record.get("sender"), record.get("receiver")
    if type(a) is not int or type(b) is not int or a == b:
        return None
    return (a, b) if 0 <= a < count and 0 <= b < count else None


def number_of(record: Row, repetitions: int) -> int | None:
    """Return the repetition of a line; None for one that was not asked for."""
    number = record.get("number")
    return number if type(number) is int and 0 <= number < repetitions else None


def _values(given: Json) -> list[tuple[int, float]]:
    """Return the pairs of a size and a value that a line holds."""
    if not isinstance(given, list) or len(given) > MOST_VALUES:
        return []
    return [
        (item[0], float(item[1]))
        for item in given
        if isinstance(item, list)
        and len(item) == 2
        and type(item[0]) is int
        and 0 < item[0] <= MOST_SIZE
        and type(item[1]) in {int, float}
        and 1e-9 < item[1] < 1e15
    ]


def loopback(lines: Sequence[Line]) -> dict[int, float]:
    """Return what rank 0's processor alone costs, by size in bytes."""
    return {
        size: value
        for line in lines
        if line.rank == 0 and line.record.get("probe") == "loopback"
        for size, value in _values(line.record.get("latency_s"))
    }


def version(lines: Sequence[Line]) -> str:
    """Return the version of the tool that rank 0 used."""
    told = (
        line.record.get("version")
        for line in lines
        if line.rank == 0 and line.record.get("probe") == "tool"
    )
    return next((text[:20] for text in told if isinstance(text, str)), "")
