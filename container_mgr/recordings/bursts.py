"""Finds bursts in what a NIC has sent. Pure: an estimate of a job's steps, without its help.

A training computes, then exchanges gradients: its NIC is silent, then busy, once a step. What is
busy follows from the data: ticks count as busy from a tenth of the rate at which half of all bytes
went. A step that sends in several bursts (one a bucket of gradients, or stalls on a busy machine)
shows short gaps inside and a long one between two steps, so short gaps are bridged where that
makes the bursts more regular: in their bytes, which are the same in every step however long it
takes, and in their distances, which distinguish a step from one of its equal buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from measure.statistics import median, summarise

BUSY_SHARE = 0.1
LEAST_BYTES = 64 * 1024
"""A window with less is silence: name look-ups, keep-alives."""
LEAST_BURSTS = 3
"""For a period: with two there is one distance, and no spread."""
MOST_TICKS = 10_000
_MOST_CUTS = 64
"""Lengths of gaps that are tried."""


@dataclass(slots=True, frozen=True)
class Tick:
    """A NIC's counter at one time: seconds of a monotonic clock, and bytes."""

    time_s: float
    sent_bytes: int


@dataclass(slots=True, frozen=True, kw_only=True)
class Bursts:
    """Bursts of one window; medians are None with fewer than three of them."""

    window_s: float
    bursts: int
    period_s: float | None = None
    burst_s: float | None = None
    sent_bytes: float | None = None
    """The ticks of one burst."""
    spread: float | None = None
    """Half the 95 % interval of the median period, relative."""


@dataclass(slots=True, frozen=True)
class _Run:
    """Neighbouring busy ticks, from ``begin`` to ``end`` seconds."""

    begin: float
    end: float
    bytes: int


def find(ticks: Sequence[Tick]) -> Bursts | None:
    """Return the bursts between the first and the last tick.

    None for fewer than three ticks, and for counters or clocks that run backwards.
    """
    if not 3 <= len(ticks) <= MOST_TICKS:
        return None
    steps = [(a, b, b.time_s - a.time_s, b.sent_bytes - a.sent_bytes) for a, b in pairwise(ticks)]
    if any(seconds <= 0 or sent < 0 for _, _, seconds, sent in steps):
        return None
    window_s = ticks[-1].time_s - ticks[0].time_s
    total = ticks[-1].sent_bytes - ticks[0].sent_bytes
    if total < LEAST_BYTES:
        return Bursts(window_s=window_s, bursts=0)
    full = _full_rate([(sent / seconds, sent) for _, _, seconds, sent in steps], total)
    busy = [sent / seconds >= BUSY_SHARE * full for _, _, seconds, sent in steps]
    runs, first = [], 0
    for position in range(1, len(steps) + 1):
        if position < len(steps) and busy[position] == busy[first]:
            continue
        if busy[first]:
            runs.append(_run(steps[first:position], full))
        first = position
    return _summary(_most_regular(runs), ticks[0].time_s, ticks[-1].time_s)


def _full_rate(rates: Sequence[tuple[float, int]], total: int) -> float:
    """Return the mean rate of the fastest ticks that carry half of all bytes."""
    taken, used, seconds = 0, 0.0, 0.0
    for rate, sent in sorted(rates, reverse=True):
        if taken >= total / 2 or rate <= 0:
            break
        taken, used, seconds = taken + sent, used + sent, seconds + sent / rate
    return used / seconds


def _run(steps: Sequence[tuple[Tick, Tick, float, int]], full: float) -> _Run:
    """Return busy ticks as a run; of its first and its last tick only the busy part counts."""
    (_, after, first_s, first_bytes), (before, _, last_s, last_bytes) = steps[0], steps[-1]
    begin = after.time_s - min(first_s, first_bytes / full)
    end = before.time_s + min(last_s, last_bytes / full)
    if len(steps) == 1:
        begin, end = before.time_s, after.time_s
    return _Run(begin, max(begin, end), sum(sent for *_, sent in steps))


def _most_regular(runs: Sequence[_Run]) -> Sequence[_Run]:
    """Bridge no gaps, or all up to a length, whichever makes the bursts most regular."""
    if len(runs) <= LEAST_BURSTS:
        return runs
    gaps = sorted({b.begin - a.end for a, b in pairwise(runs)})
    cuts = gaps[: -1 : -(-len(gaps) // _MOST_CUTS)]
    choices = [runs, *(_bridged(runs, longest) for longest in cuts)]
    return min((c for c in choices if len(c) > LEAST_BURSTS or c is runs), key=_irregularity)


def _bridged(runs: Sequence[_Run], longest: float) -> list[_Run]:
    joined = [runs[0]]
    for run in runs[1:]:
        last = joined[-1]
        if run.begin - last.end <= longest:
            joined[-1] = _Run(last.begin, run.end, last.bytes + run.bytes)
        else:
            joined.append(run)
    return joined


def _irregularity(runs: Sequence[_Run]) -> float:
    """Return the relative deviations of bytes and periods; few bursts prove little."""
    periods = [b.begin - a.begin for a, b in pairwise(runs)]
    # The first and the last may be cut off by the window.
    sent = [float(run.bytes) for run in runs[1:-1]]
    return _deviation(sent) + _deviation(periods) + 2 / len(periods)


def _deviation(values: Sequence[float]) -> float:
    """Return the mean deviation from the median, relative to it."""
    middle = median(values)
    return sum(abs(value - middle) for value in values) / len(values) / max(middle, 1e-9)


def _summary(runs: Sequence[_Run], begin: float, end: float) -> Bursts:
    window_s = end - begin
    # A burst at the edge of the window was under way before it, or goes on after it.
    begun = [run for run in runs if run.begin > begin]
    whole = [run for run in begun if run.end < end]
    periods = summarise([b.begin - a.begin for a, b in pairwise(begun)])
    if periods is None or len(begun) < LEAST_BURSTS or not whole or periods.median <= 0:
        return Bursts(window_s=window_s, bursts=len(runs))
    return Bursts(
        window_s=window_s,
        bursts=len(runs),
        period_s=periods.median,
        burst_s=median([run.end - run.begin for run in whole]),
        sent_bytes=median([float(run.bytes) for run in whole]),
        spread=(periods.high - periods.low) / 2 / periods.median,
    )
