"""Who waits for whom: one collective on all its ranks, by its communicator and number.

A collective ends on all ranks at about the same time, so the rank that comes last sees the
shortest: about the transfer alone. What the others see beyond that is waiting. Only durations are
compared, because servers' clocks differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from measure.comms.recorded import RecordedRank, is_collective
from measure.comms.rows import Key, key_of
from measure.statistics import median


@dataclass(slots=True, frozen=True)
class Skew:
    """Medians over the calls that were seen on at least two ranks, in seconds."""

    transfer_s: float
    """Duration of the rank that came last."""
    skew_s: float
    """Longest minus shortest duration."""
    calls: int
    last: Mapping[int, int]
    """How often each rank came last."""


def skews(recordings: Sequence[RecordedRank]) -> dict[Key, Skew]:
    """Return the skew of every kind of call, from the latest calls of each rank."""
    seen: dict[tuple[Key, int, int], dict[int, float]] = {}
    for recording in recordings:
        operations = recording.operations
        for call in recording.calls:
            if call.ended_s is None or call.operation >= len(operations):
                continue
            if not is_collective(operations[call.operation]):
                continue
            group = (key_of(operations[call.operation]), call.communicator, call.sequence)
            seen.setdefault(group, {})[recording.rank] = call.ended_s - call.issued_s
    least: dict[Key, list[float]] = {}
    spans: dict[Key, list[float]] = {}
    last: dict[Key, Counter[int]] = {}
    for (key, _, _), durations in seen.items():
        if len(durations) < 2:
            continue
        rank = min(durations, key=lambda r: (durations[r], r))
        least.setdefault(key, []).append(durations[rank])
        spans.setdefault(key, []).append(max(durations.values()) - durations[rank])
        last.setdefault(key, Counter())[rank] += 1
    return {
        key: Skew(median(values), median(spans[key]), len(values), dict(last[key]))
        for key, values in least.items()
    }
