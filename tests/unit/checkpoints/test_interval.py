from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints.interval import (
    Exposure,
    Loss,
    advise,
    daly,
    ettr,
    lost_by_cause,
    mtbf,
    overhead,
    waste,
    young,
)

COST, MTBF = st.floats(1e-3, 1e3), st.floats(1e3, 1e7)


def test_young() -> None:
    """Two seconds and a day: sqrt(2 x 2 x 86400) = 587.9 s."""
    assert young(2, 86_400) == pytest.approx(587.878, abs=1e-3)
    assert daly(2, 86_400) == pytest.approx(586.545, abs=1e-3)
    assert daly(30, 10) == 10


@given(COST, MTBF)
def test_the_advised_interval_wastes_no_more_than_others(cost: float, between: float) -> None:
    best = waste(young(cost, between), cost, 0, between)
    for factor in (0.25, 0.5, 2, 4):
        assert best <= waste(factor * young(cost, between), cost, 0, between) + 1e-12
    if cost < between / 100:
        assert daly(cost, between) == pytest.approx(young(cost, between), rel=0.06)


def test_mtbf_adds_rates() -> None:
    gpu = Exposure(failures=4, hours=4000)
    server = Exposure(failures=1, hours=500)
    assert mtbf([(8, gpu), (4, server)]) == pytest.approx(3600 / (8 / 1000 + 4 / 500))
    with pytest.raises(ValueError, match="no rate of failures"):
        mtbf([(8, Exposure(0, 0))])


def test_no_failure_seen_is_no_promise() -> None:
    advice = advise(2, 1, 20, [(8, Exposure(0, 800))])
    assert advice.bounded and advice.mtbf_s == pytest.approx(3600 / (8 * 3 / 800))
    assert not advise(2, 1, 20, [(8, Exposure(1, 800))]).bounded


def test_advice_is_in_steps() -> None:
    advice = advise(0.5, 0.2, 20, [(8, Exposure(2, 1000))], now_s=600)
    assert advice.steps == round(advice.interval_s / 0.2) > 1
    assert advice.waste_now is not None and advice.waste < advice.waste_now
    assert advise(0, 0.2, 20, [(8, Exposure(2, 1000))]).steps == 1


@pytest.mark.parametrize(
    ("cost", "step", "now"), [(-1, 1, None), (math.nan, 1, None), (1, 0, None), (1, 1, 0.0)]
)
def test_what_was_not_measured_is_not_advised_on(
    cost: float, step: float, now: float | None
) -> None:
    with pytest.raises(ValueError, match="not measured"):
        advise(cost, step, 1, [(1, Exposure(1, 1))], now)


def test_overhead_and_ettr() -> None:
    assert overhead([11, 10.2, 10.4], [10, 10.0, 99]) == pytest.approx(0.04)
    assert ettr(900, 1.0, 1000) == pytest.approx(0.9)
    assert ettr(10, 1.0, 9) == 1.0
    with pytest.raises(ValueError, match="no time passed"):
        ettr(1, 1, 0)
    with pytest.raises(ValueError, match="lasted 0 s"):
        overhead([1], [0])


def test_lost_gpu_hours_by_cause() -> None:
    losses = [Loss("endpoint", 8, 20, 70), Loss("server", 8, 60, 300), Loss("endpoint", 4, 0, 45)]
    found = lost_by_cause(losses)
    assert list(found) == ["server", "endpoint"]
    assert found == pytest.approx({"server": 0.8, "endpoint": 0.25})
