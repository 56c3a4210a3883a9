"""Finds a rank's steps in its latest calls, and what of their communication nothing covers.

A training repeats the same calls every step. The shortest pattern that repeats is the step, or
several of it, whichever repeats at the most regular times: buckets of equal size look alike.

Exposed is the communication at the step's end: from the issue of its last call to the end of all,
because a program that has issued its last call waits. A call that was issued as soon as the one
before had ended was waiting too, and is exposed as well. Overlap is defined as in HTA (Holistic
Trace Analysis): the share of the communication's time during which the rank computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from measure.comms.recorded import SETUP, CommOperation, RecordedRank, is_collective
from measure.comms.rows import factor
from measure.statistics import median, summarise

LEAST_STEPS = 3
_MOST_PATTERN = 128
_MOST_REPEATS = 32
"""Most repetitions of the shortest pattern in one step."""
_SAME = 0.95
"""Share of calls that equal those one pattern earlier: logging and evaluation come in between."""
_AT_ONCE_S = 0.001
_AT_ONCE_SHARE = 0.05
_LONGEST_GAP = 10.0
"""Steps longer than so many medians held something else: a checkpoint, a freeze."""


@dataclass(slots=True, frozen=True, kw_only=True)
class CommSteps:
    """Medians over the steps of one rank that were seen. Seconds and bytes."""

    rank: int
    step_s: float
    spread: float
    """Half the 95 % interval of the median step, relative."""
    comm_s: float | None
    """Time in which a collective was under way; None where ends are not known."""
    exposed_s: float | None
    bytes: float
    """Sum of the sizes, each weighted by :func:`weight`."""
    calls: float
    steps: int
    source: str

    @property
    def compute_s(self) -> float | None:
        """Time of a step in which it did not wait for communication."""
        return None if self.exposed_s is None else max(0.0, self.step_s - self.exposed_s)

    @property
    def overlap(self) -> float | None:
        """Share of the communication that computation covers."""
        if not self.comm_s or self.exposed_s is None:
            return None
        return min(1.0, max(0.0, 1 - self.exposed_s / self.comm_s))


@dataclass(slots=True, frozen=True)
class _Call:
    operation: CommOperation
    issued_s: float
    ended_s: float | None


def weight(op: str, ranks: int) -> float:
    """Return how many bytes of an all-reduce load a ring as much as one byte of ``op``."""
    return factor(op, ranks) / factor("all_reduce", ranks)


def steps_of(recording: RecordedRank, ranks: int) -> CommSteps | None:
    """Return the steps of one rank of a job of ``ranks``; None where no pattern repeats."""
    calls = [
        _Call(operation, call.issued_s, call.ended_s)
        for call in recording.calls
        if call.operation < len(recording.operations)
        and is_collective(operation := recording.operations[call.operation])
        and operation.tag != SETUP
    ]
    length = _length(calls)
    if length is None:
        return None
    first = _first(calls, length)
    parts = [calls[i : i + length] for i in range(first, len(calls) - length + 1, length)]
    times = [b[0].issued_s - a[0].issued_s for a, b in pairwise(parts)]
    if len(times) < LEAST_STEPS:
        return None
    usual = median(times)
    whole = [
        (part, step_s)
        for part, step_s in zip(parts, times, strict=False)
        if 0 < step_s <= _LONGEST_GAP * usual
    ]
    summary = summarise([step_s for _, step_s in whole])
    if summary is None or len(whole) < LEAST_STEPS or summary.median <= 0:
        return None
    timed = [c for c in (_covered(part) for part, _ in whole) if c is not None]
    known = len(timed) == len(whole)
    return CommSteps(
        rank=recording.rank,
        step_s=summary.median,
        spread=(summary.high - summary.low) / 2 / summary.median,
        comm_s=median([comm for comm, _ in timed]) if known else None,
        exposed_s=median([exposed for _, exposed in timed]) if known else None,
        bytes=median(
            [
                sum(c.operation.bytes * weight(c.operation.op, ranks) for c in part)
                for part, _ in whole
            ]
        ),
        calls=float(length),
        steps=len(whole),
        source=calls[-1].operation.source,
    )


def _length(calls: Sequence[_Call]) -> int | None:
    """Return the number of calls of a step."""
    names = [(c.operation.op, c.operation.bytes, c.operation.dtype) for c in calls]
    for pattern in range(1, min(_MOST_PATTERN, len(names) // (LEAST_STEPS + 1)) + 1):
        same = sum(names[i] == names[i - pattern] for i in range(pattern, len(names)))
        if same >= _SAME * (len(names) - pattern):
            break
    else:
        return None
    most = min(_MOST_REPEATS, len(calls) // pattern // (LEAST_STEPS + 1))
    lengths = [pattern * repeats for repeats in range(1, most + 1)]
    return min(lengths, key=lambda length: (round(_irregularity(calls, length), 3), length))


def _irregularity(calls: Sequence[_Call], length: int) -> float:
    """Return the mean deviation of the steps' times, relative; few steps prove little."""
    first = _first(calls, length)
    begins = [call.issued_s for call in calls[first::length]]
    times = [b - a for a, b in pairwise(begins)]
    middle = median(times)
    deviation = sum(abs(time - middle) for time in times) / len(times)
    return deviation / max(middle, 1e-9) + 2 / len(times)


def _first(calls: Sequence[_Call], length: int) -> int:
    """Return where a step begins: behind the longest silence of the pattern.

    A silence has no call under way; where that is never so, or not known, the longest time
    between two issues counts.
    """
    ends: list[float] = []
    for call in calls:
        reached = call.ended_s if call.ended_s is not None else call.issued_s
        ends.append(max(reached, ends[-1]) if ends else reached)

    def silence(begin: int) -> tuple[float, float]:
        places = range(begin, len(calls), length)
        idle = median([calls[i].issued_s - ends[i - 1] for i in places])
        return max(0.0, idle), median([calls[i].issued_s - calls[i - 1].issued_s for i in places])

    return max(range(1, length + 1), key=lambda begin: (silence(begin), -begin)) % length


def _covered(part: Sequence[_Call]) -> tuple[float, float] | None:
    """Return a step's time of communication and the exposed part; None for unknown ends."""
    spans = [(c.issued_s, c.ended_s) for c in part if c.ended_s is not None]
    if len(spans) < len(part):
        return None
    comm, reached = 0.0, float("-inf")
    for begin, end in spans:
        comm += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    waiting_from = spans[-1][0]
    for (begin, end), (after, after_end) in zip(
        reversed(spans[:-1]), reversed(spans[1:]), strict=True
    ):
        if not 0 <= after - end <= max(_AT_ONCE_S, _AT_ONCE_SHARE * (after_end - after)):
            break
        waiting_from = begin
    return comm, max(0.0, min(comm, reached - waiting_from))
