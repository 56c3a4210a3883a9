"""Calibration: intervals that contain the truth, and profiles from two placements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.steptime.calibrate import Calibration
from scheduler.steptime.profile import StepProfile


def test_one_placement_gives_an_interval() -> None:
    seen = Calibration(4)
    seen.observe(1.0, 2.0)
    assert seen.unidentified == ("compute_s", "ring_s", "hide")
    assert seen.profile() is None
    slower, same = seen.predict(0.25), seen.predict(1.0)
    assert (slower.low, slower.high) == (2.0, 8.0)
    assert not slower.exact
    assert same.exact
    assert same.low == 2.0


@given(
    st.builds(
        StepProfile, st.floats(0.1, 10), st.floats(0, 10), st.sampled_from([0.0, 0.25, 0.5, 0.9])
    ),
    st.integers(2, 32),
    st.lists(st.floats(0.05, 1.0), min_size=1, max_size=3),
    st.floats(0.05, 1.0),
)
def test_the_truth_lies_in_every_interval(
    truth: StepProfile, size: int, rates: list[float], asked: float
) -> None:
    seen = Calibration(size)
    for rate in rates[:2]:
        seen.observe(rate, truth.step_s(size, rate))
    if seen.placements == 2 and abs(rates[0] - rates[1]) < 0.05 * rates[0]:
        return  # nearly the same placement: the fit is ill-conditioned by rounding
    found, real = seen.predict(asked), truth.step_s(size, asked)
    assert found.low <= real * (1 + 1e-6)
    assert found.high >= real * (1 - 1e-6)


def test_two_placements_give_the_profile() -> None:
    truth = StepProfile(1.0, 0.8, 0.5)
    seen = Calibration(4, hide=0.5)
    for rate in (1.0, 0.25, 1.0, 0.25):
        seen.observe(rate, truth.step_s(4, rate))
    assert seen.unidentified == ()
    found = seen.profile()
    assert found is not None
    assert found.compute_s == pytest.approx(1.0)
    assert found.ring_s == pytest.approx(0.8)
    assert seen.predict(0.5).exact
    assert seen.predict(0.5).low == pytest.approx(truth.step_s(4, 0.5))


def test_a_placement_that_hides_everything_shows_the_compute() -> None:
    truth = StepProfile(10.0, 1.0, 0.5)
    seen = Calibration(2, hide=0.5)
    for rate in (1.0, 0.1):
        seen.observe(rate, truth.step_s(2, rate))
    found = seen.profile()
    assert found is not None
    assert found.compute_s == pytest.approx(10.0)
    assert found.ring_s == pytest.approx(1.0)


def test_noise_averages_out() -> None:
    truth = StepProfile(1.0, 0.8, 0.0)
    seen = Calibration(4, hide=0.0)
    for i in range(40):
        for rate in (1.0, 0.25):
            seen.observe(rate, truth.step_s(4, rate) * (1.05 if i % 2 else 0.95))
    assert seen.predict(0.5).low == pytest.approx(truth.step_s(4, 0.5), rel=0.01)


def test_a_lone_rank_has_no_ring() -> None:
    seen = Calibration(1)
    seen.observe(1.0, 3.0)
    assert seen.predict(0.1).exact
    assert seen.unidentified == ("ring_s", "hide")


def test_invalid_values_are_rejected() -> None:
    with pytest.raises(ValueError, match="no step was measured"):
        Calibration(2).predict(1.0)
    with pytest.raises(ValueError, match="impossible"):
        Calibration(2).observe(0.0, 1.0)
    with pytest.raises(ValueError, match="at least 1"):
        Calibration(0)
