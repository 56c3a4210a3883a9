"""Metrics of jobs' communication: what collectives cost, by operation and size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric

from controller.comms.ledger import Bucket, BucketSums

MOST_BUCKETS = 64
"""Of one job: those that took the longest."""


def of_collectives(jobs: Mapping[str, Mapping[Bucket, BucketSums]]) -> Iterator[Metric]:
    """Yield the families; ``size_bucket`` is the largest size of its calls in bytes."""
    labels = ("job", "op", "size_bucket")
    seconds = CounterMetricFamily(
        "lightloom_collective_seconds", "Time of all ranks in collectives", labels=labels
    )
    calls = CounterMetricFamily(
        "lightloom_collective_calls", "Calls of collectives on all ranks", labels=labels
    )
    moved = CounterMetricFamily(
        "lightloom_collective_bytes", "Sizes of the arrays of these calls", labels=labels
    )
    for job, buckets in jobs.items():
        longest = sorted(buckets.items(), key=lambda item: -item[1].seconds)[:MOST_BUCKETS]
        for (op, size), sums in longest:
            seconds.add_metric((job, op, str(size)), sums.seconds)
            calls.add_metric((job, op, str(size)), sums.calls)
            moved.add_metric((job, op, str(size)), sums.bytes)
    yield from (seconds, calls, moved)
