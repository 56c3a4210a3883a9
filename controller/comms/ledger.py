"""What is kept of jobs' communication: sums since each rank's start, and those of the last hour.

Pure. Values are replaced, never changed: a thread makes them while the loop shows the old ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller.devices.engine import Recording
from measure.comms import facts as step_facts
from measure.comms.facts import Overlap
from measure.comms.recorded import counted, is_collective
from measure.comms.rows import Key, Sums, added, table
from measure.comms.skew import Skew, skews
from scheduler.steptime.facts import StepFacts

PAST_EVERY_S = 60.0
MOST_PAST = 61
"""Of one rank: an hour."""
MOST_PAST_ROWS = 16
"""Of one rank and minute: those that took the longest."""
MOST_SKEWED = 64
"""Ranks of a job whose calls are compared one by one."""

_PAST_BYTES = 400
"""What a row of the past takes, without its histogram."""

Table = Mapping[Key, Sums]
Bucket = tuple[str, int]
"""An operation and the largest size of its calls, a power of four; 0 for none."""


@dataclass(slots=True, frozen=True)
class BucketSums:
    """Calls of one operation with sizes of one bucket, of all runs and ranks."""

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True, frozen=True)
class Past:
    """The sums of a rank at one time."""

    time: float
    sums: Table


@dataclass(slots=True, frozen=True)
class RankComms:
    """One rank of the job's present run."""

    recording: Recording
    """The latest; its calls and bursts are the latest as well."""
    sums: Table
    """Of its collectives."""
    past: tuple[Past, ...] = ()
    """Oldest first."""
    cut: bool = False
    """Older ones were dropped."""

    def since(self, time: float) -> tuple[Table, float | None]:
        """Return the sums of the calls after about ``time``, and after when exactly.

        The second is None for the whole run.
        """
        before = [past for past in self.past if past.time <= time]
        base = before[-1] if before else self.past[0] if self.cut and self.past else None
        if base is None:
            return self.sums, None
        return {key: sums.since(base.sums.get(key)) for key, sums in self.sums.items()}, base.time


@dataclass(slots=True, frozen=True)
class JobComms:
    """One job."""

    epoch: int
    size: int
    """Number of its ranks."""
    ranks: Mapping[int, RankComms]
    earlier: Table = field(default_factory=dict)
    """Sums of its runs before the present one, of all ranks."""
    overlaps: tuple[Overlap, ...] = ()
    facts: StepFacts | None = None
    skews: Mapping[Key, Skew] = field(default_factory=dict)
    buckets: Mapping[Bucket, BucketSums] = field(default_factory=dict)


def advance(
    known: JobComms | None,
    recordings: Sequence[Recording],
    epoch: int,
    size: int,
    now: float,
    *,
    past_bytes: int = 2**20,
) -> JobComms:
    """Return a job's figures with the latest recordings of the run ``epoch``.

    The past of a rank takes at most ``past_bytes``: with fewer, its times lie further apart.
    """
    earlier: Table = {}
    ranks: dict[int, RankComms] = {}
    if known is not None and known.epoch == epoch:
        earlier, ranks = known.earlier, dict(known.ranks)
    elif known is not None:
        earlier = _total((known.earlier, *(rank.sums for rank in known.ranks.values())))
    for recording in recordings:
        before = ranks.get(recording.rank)
        ranks[recording.rank] = _advanced(before, once(recording), now, past_bytes)
    latest = [rank.recording for rank in ranks.values()]
    return JobComms(
        epoch=epoch,
        size=size,
        ranks=ranks,
        earlier=earlier,
        overlaps=tuple(step_facts.overlaps(latest, size)),
        facts=step_facts.facts(latest, size),
        skews=skews(latest[:MOST_SKEWED]),
        buckets=_buckets((earlier, *(rank.sums for rank in ranks.values()))),
    )


def once(recording: Recording) -> Recording:
    """Return a recording that has each call once, if two recorders saw it."""
    kept = counted(recording.operations)
    if len(kept) == len(recording.operations):
        return recording
    now_at = {before: after for after, before in enumerate(kept)}
    return replace(
        recording,
        operations=tuple(recording.operations[position] for position in kept),
        calls=tuple(
            replace(call, operation=now_at[call.operation])
            for call in recording.calls
            if call.operation in now_at
        ),
    )


def _advanced(
    known: RankComms | None, recording: Recording, now: float, past_bytes: int
) -> RankComms:
    sums: Table = table(o for o in recording.operations if is_collective(o))
    # The sums have the histograms now.
    bare = tuple(replace(operation, histogram=()) for operation in recording.operations)
    recording = replace(recording, operations=bare)
    if known is None:
        return RankComms(recording, sums)
    same = {key: key for key in known.sums}
    sums = {same.get(key, key): one for key, one in sums.items()}
    if not sums:
        sums = known.sums  # its file is damaged or gone: what was counted has happened
    past, cut = known.past, known.cut
    if known.sums and (not past or now - past[-1].time >= PAST_EVERY_S):
        longest = sorted(known.sums.items(), key=lambda item: -item[1].total_s)[:MOST_PAST_ROWS]
        past = (*past, Past(known.recording.time, dict(longest)))
    if len(past) > MOST_PAST:
        past, cut = past[-MOST_PAST:], True
    while past and sum(map(_weight, past)) > past_bytes:
        past, cut = past[1::2], True
    return RankComms(recording, sums, past, cut)


def _weight(past: Past) -> int:
    return sum(_PAST_BYTES + len(sums.bins) for sums in past.sums.values())


def _total(tables: Iterable[Table]) -> dict[Key, Sums]:
    parts: dict[Key, list[Sums]] = {}
    for one in tables:
        for key, sums in one.items():
            parts.setdefault(key, []).append(sums)
    return {key: added(sums) for key, sums in parts.items()}


def _buckets(tables: Iterable[Table]) -> dict[Bucket, BucketSums]:
    found: dict[Bucket, BucketSums] = {}
    for one in tables:
        for (op, size, *_), sums in one.items():
            key = op, bucket(size)
            before = found.get(key, BucketSums())
            found[key] = BucketSums(
                before.calls + sums.calls,
                before.bytes + sums.calls * size,
                before.seconds + sums.total_s,
            )
    return found


def bucket(size: int) -> int:
    """Return the smallest power of four that ``size`` bytes fit in; 0 for none."""
    if size <= 0:
        return 0
    bits = (size - 1).bit_length()
    return 1 << (bits + bits % 2)
