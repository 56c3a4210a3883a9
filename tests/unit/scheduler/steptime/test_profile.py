"""Step profiles: the time of a step, and the fit to the paper."""

from __future__ import annotations

import pytest

from scheduler.steptime.profile import PAPER_CORE_RATE, PAPER_PROFILE, StepProfile


def test_what_the_four_times_do_not_identify() -> None:
    """Overlap and compute are interchangeable while communication exceeds the overlap."""
    plain, hidden = StepProfile(211, 153, 0.0), StepProfile(211 / 0.67, 153, 0.33)
    for size, rate in ((4, 1 / 6.6), (3, 1 / 4.4)):
        assert hidden.step_s(size, rate) == pytest.approx(plain.step_s(size, rate))


def test_the_constants_are_the_fit() -> None:
    assert (PAPER_PROFILE.compute_s, PAPER_PROFILE.ring_s, PAPER_PROFILE.hide) == (420, 151, 0.5)
    assert pytest.approx(1 / 2.24) == PAPER_CORE_RATE


def test_step() -> None:
    profile = StepProfile(compute_s=1.0, ring_s=0.4, hide=0.5, hop_s=0.01)
    assert profile.step_s(1, 0.01) == 1.0
    assert profile.step_s(4, 1.0) == pytest.approx(0.5 + 0.06 + 0.6)
    assert profile.step_s(4, 0.5) == pytest.approx(0.5 + 0.06 + 1.2)
    with pytest.raises(ValueError, match="rate above 0"):
        profile.step_s(4, 0.0)
