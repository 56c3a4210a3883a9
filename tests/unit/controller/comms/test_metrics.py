"""Prometheus metrics of collectives."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from controller.api.routes.metrics import comms
from controller.comms.ledger import advance
from measure.comms.recorded import INPUT_WAIT, STEP
from tests.parts.measure.recordings import operation, recording


class Shown(Collector):
    def __init__(self, known: dict[str, object]) -> None:
        self.known = known

    def collect(self) -> list[Metric]:
        return list(comms.of_collectives(self.known))  # type: ignore[arg-type]


def text_of(known: dict[str, object]) -> str:
    registry = CollectorRegistry()
    registry.register(Shown(known))
    return generate_latest(registry).decode()


def test_seconds_calls_and_bytes_by_operation_and_size() -> None:
    rows = (
        operation("all_reduce", 3 * 2**20, [0.5, 0.25]),
        operation("all_reduce", 4 * 2**20, [0.25]),
        operation("barrier", 0, [0.125]),
        operation(INPUT_WAIT, 0, [9.0]),
        operation(STEP, 0, [9.0]),
    )
    text = text_of({"red": advance(None, [recording([], rows=rows)], 1, 2, 5.0).buckets})
    label = 'job="red",op="all_reduce",size_bucket="4194304"'
    assert f"lightloom_collective_seconds_total{{{label}}} 1.0" in text
    assert f"lightloom_collective_calls_total{{{label}}} 3.0" in text
    assert f"lightloom_collective_bytes_total{{{label}}} 1.048576e+07" in text  # 10 MiB
    barrier = 'lightloom_collective_calls_total{job="red",op="barrier",size_bucket="0"} 1.0'
    assert barrier in text
    assert INPUT_WAIT not in text
    assert 'op="step"' not in text


def test_series_of_a_job_are_bounded() -> None:
    rows = tuple(operation(f"op{n}", 4**k, [n + k + 1.0]) for n in range(20) for k in range(20))
    text = text_of({"red": advance(None, [recording([], rows=rows)], 1, 2, 5.0).buckets})
    lines = [one for one in text.splitlines() if one.startswith("lightloom_collective_calls_total")]
    assert len(lines) == comms.MOST_BUCKETS
    assert any('op="op19"' in one for one in lines)
