"""Recordings of a training that is known exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.devices.engine import RecordedCall, RecordedOperation, Recording, WireBursts
from recorder.python.lightloom_writer import BINS, bin_of


def operation(
    op: str = "all_reduce", size: int = 4096, durations: Sequence[float] = (), **fields: object
) -> RecordedOperation:
    """Return the sums of these durations."""
    histogram = [0] * BINS
    for one in durations:
        histogram[bin_of(one)] += 1
    made = RecordedOperation(
        op=op,
        bytes=size,
        dtype="float",
        tag="",
        calls=len(durations),
        total_s=sum(durations),
        min_s=min(durations, default=0.0),
        max_s=max(durations, default=0.0),
        histogram=tuple(histogram),
        source="torch",
        timing="host",
        exact=True,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def recording(
    calls: Sequence[tuple[int, float, float | None]],
    *,
    rank: int = 0,
    rows: Sequence[RecordedOperation] = (),
    wire: WireBursts | None = None,
    tag: str = "",
) -> Recording:
    """Return a recording of all-reduces of (bytes, issued, ended)."""
    sizes = list(dict.fromkeys(size for size, _, _ in calls))
    durations = {
        size: [end - begin for s, begin, end in calls if s == size and end is not None]
        for size in sizes
    }
    counts = {size: sum(s == size for s, _, _ in calls) for size in sizes}
    made = tuple(
        operation(size=size, durations=durations[size], calls=counts[size], tag=tag)
        for size in sizes
    )
    return Recording(
        job="red",
        rank=rank,
        epoch=1,
        server="srv0",
        state="recording",
        time=1.0,
        operations=(*made, *rows),
        calls=tuple(
            RecordedCall(sizes.index(size), number, begin, end, 7)
            for number, (size, begin, end) in enumerate(calls)
        ),
        wire=wire,
    )


def training(
    steps: int,
    compute_s: float,
    buckets: Sequence[tuple[int, float, float]],
    *,
    rank: int = 0,
    offset_s: float = 1000.0,
    wire: WireBursts | None = None,
) -> Recording:
    """Return steps whose buckets are (bytes, when issued in the computation, duration).

    Buckets go one after the other; a step ends with its computation and its last bucket.
    """
    calls: list[tuple[int, float, float | None]] = []
    now = offset_s
    for _ in range(steps):
        reached = now
        for size, at, length in buckets:
            begin = now + at
            reached = max(reached, begin) + length
            calls.append((size, begin, reached))
        now = max(now + compute_s, reached)
    return recording(calls, rank=rank, wire=wire)
