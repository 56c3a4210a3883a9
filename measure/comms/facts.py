"""What is known of a job's steps: from its calls, else from bursts on the wire.

Of the ranks, the one that waits least determines the step: it computes longest, and the time
that it sees in collectives is the transfer, not waiting for others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from measure.comms.recorded import INPUT_WAIT, STEP, RecordedRank, Wire
from measure.comms.steps import CommSteps, steps_of
from scheduler.steptime.facts import Source, StepFacts

Definition = Literal["timeline", "wire"]

PAYLOAD = 1448 / 1514
"""Share of TCP's payload in what a NIC counts, with 1,500 bytes of MTU and time stamps."""
MOST_RANKS = 16
"""Ranks of a job whose calls are analysed."""
_SAME_STEP = 2**0.5
"""Steps of ranks that differ by more, as a factor, are not the same steps: 2 is the least."""
TEXTS: dict[Definition, str] = {
    "timeline": "HTA: the share of the time in collectives during which the rank computes",
    "wire": "an estimate: a burst on the wire counts as communication that nothing covers",
}


@dataclass(slots=True, frozen=True, kw_only=True)
class Overlap:
    """How a rank's communication and computation share a step. Seconds and bytes."""

    rank: int
    step_s: float
    compute_s: float
    comm_s: float
    exposed_s: float
    overlap: float | None
    definition: Definition
    bytes_per_step: float
    calls_per_step: float | None
    steps: int
    spread: float
    source: Source


def overlaps(recordings: Sequence[RecordedRank], ranks: int) -> list[Overlap]:
    """Return the overlap of the ranks of a job of ``ranks`` for which it is known."""
    chosen = sorted(recordings, key=lambda r: r.rank)
    every = -(-len(chosen) // MOST_RANKS) or 1
    found = [_overlap(recording, ranks) for recording in chosen[::every]]
    return _agreed([one for one in found if one is not None])


def _agreed(found: list[Overlap]) -> list[Overlap]:
    """Leave out the ranks whose bursts on the wire are not the steps of most others.

    All ranks of a job make the same steps. A rank that waits for its peer within each step shows
    two bursts where the peer shows one; of two ranks that disagree, the longer step holds.
    """
    if not found:
        return found
    usual_s = sorted(one.step_s for one in found)[len(found) // 2]
    return [
        one
        for one in found
        if one.source != "wire" or usual_s / _SAME_STEP < one.step_s < usual_s * _SAME_STEP
    ]


def slowest(found: Sequence[Overlap]) -> Overlap | None:
    """Return the rank that the others wait for; None without ranks."""
    return max(found, key=lambda one: (one.compute_s, -one.rank), default=None)


def facts(recordings: Sequence[RecordedRank], ranks: int) -> StepFacts | None:
    """Return what is known of the steps of a job of ``ranks``."""
    found = slowest(overlaps(recordings, ranks))
    if found is None:
        return None
    return StepFacts(
        ranks=ranks,
        step_s=found.step_s,
        comm_s=found.comm_s,
        exposed_s=found.exposed_s,
        bytes_per_step=found.bytes_per_step,
        calls_per_step=found.calls_per_step or 0.0,
        wait_s=input_wait_s(recordings),
        spread=found.spread,
        source=found.source,
        steps=found.steps,
    )


def input_wait_s(recordings: Sequence[RecordedRank]) -> float | None:
    """Return the time of a step in which a rank waited for its batch; None where not recorded."""
    found = input_wait(recordings)
    return None if found is None else found[0]


def input_wait(recordings: Sequence[RecordedRank]) -> tuple[float, float] | None:
    """Return a mean step's time of waiting for its batch, and its length; None if not recorded.

    Of the rank that waits longest: the others wait for it. Needs no collectives.
    """
    waits = []
    for recording in recordings:
        steps = sum(o.calls for o in recording.operations if o.op == STEP)
        length = sum(o.total_s for o in recording.operations if o.op == STEP)
        waited = [o.total_s for o in recording.operations if o.op == INPUT_WAIT]
        if steps and waited:
            waits.append((sum(waited) / steps, length / steps))
    return max(waits, default=None)


def _overlap(recording: RecordedRank, ranks: int) -> Overlap | None:
    steps, wire = _of_profiler(recording, steps_of(recording, ranks), ranks), recording.wire
    if steps is None:
        return _of_wire(recording.rank, wire, ranks)
    if steps.comm_s is not None and steps.exposed_s is not None and steps.compute_s is not None:
        return Overlap(
            rank=steps.rank,
            step_s=steps.step_s,
            compute_s=steps.compute_s,
            comm_s=steps.comm_s,
            exposed_s=steps.exposed_s,
            overlap=steps.overlap,
            definition="timeline",
            bytes_per_step=steps.bytes,
            calls_per_step=steps.calls,
            steps=steps.steps,
            spread=steps.spread,
            source=cast("Source", steps.source),
        )
    return _of_issues(steps, wire)


def _of_profiler(recording: RecordedRank, steps: CommSteps | None, ranks: int) -> CommSteps | None:
    """Return steps that a profiler saw with its own figures, and the NIC's bytes."""
    window, wire = recording.profiler, recording.wire
    if steps is None or steps.source != "tf" or window is None:
        return steps
    exposed_s, sent = steps.exposed_s, 0.0
    if steps.comm_s is not None and window.exposed_s is not None and window.comm_s > 0:
        exposed_s = steps.comm_s * window.exposed_s / window.comm_s
    if wire is not None and wire.period_s and wire.sent_bytes is not None:
        sent = wire.sent_bytes / wire.period_s * steps.step_s * PAYLOAD / _ring(ranks)
    return replace(steps, exposed_s=exposed_s, bytes=sent)


def _ring(ranks: int) -> float:
    """Return how many bytes a rank sends for each byte of an all-reduce."""
    return 2 * (ranks - 1) / ranks if ranks > 1 else 1.0


def _of_issues(steps: CommSteps, wire: Wire | None) -> Overlap | None:
    """Return calls that have no ends with the wire's bursts as their time."""
    if wire is None or not wire.burst_s or not wire.period_s:
        return None
    comm_s = min(steps.step_s, wire.burst_s / wire.period_s * steps.step_s)
    return Overlap(
        rank=steps.rank,
        step_s=steps.step_s,
        compute_s=steps.step_s - comm_s,
        comm_s=comm_s,
        exposed_s=comm_s,
        overlap=None,
        definition="wire",
        bytes_per_step=steps.bytes,
        calls_per_step=steps.calls,
        steps=steps.steps,
        spread=steps.spread,
        source=cast("Source", steps.source),
    )


def _of_wire(rank: int, wire: Wire | None, ranks: int) -> Overlap | None:
    if wire is None or not wire.period_s or wire.burst_s is None or wire.sent_bytes is None:
        return None
    comm_s = min(wire.burst_s, wire.period_s)
    return Overlap(
        rank=rank,
        step_s=wire.period_s,
        compute_s=wire.period_s - comm_s,
        comm_s=comm_s,
        exposed_s=comm_s,
        overlap=None,
        definition="wire",
        bytes_per_step=wire.sent_bytes * PAYLOAD / _ring(ranks),
        calls_per_step=None,
        steps=max(0, wire.bursts - 1),
        spread=wire.spread or 0.0,
        source="wire",
    )
