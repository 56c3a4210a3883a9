"""Worth of a regroup: gain against cost, and the prediction of slowdowns."""

from __future__ import annotations

import pytest

from scheduler.policy.worth import (
    USUAL_RUN_S,
    Stake,
    WorthVerdict,
    remaining_s,
    slowdown,
    weigh,
)
from scheduler.steptime.calibrate import Calibration, PredictionInterval
from scheduler.steptime.profile import StepProfile


def stake(low: float, high: float, pause_s: float = 1.0) -> Stake:
    return Stake("red", 4, PredictionInterval(low, high), remaining_s=100.0, pause_s=pause_s)


def test_worth_of_a_plan() -> None:
    sure = weigh([stake(2.0, 2.0)])
    assert (sure.verdict, sure.gain_gpu_s, sure.cost_gpu_s) == (
        WorthVerdict.YES,
        PredictionInterval(200.0, 200.0),
        4.0,
    )
    assert weigh([stake(1.0, 2.0)]).verdict is WorthVerdict.OPEN
    assert weigh([stake(1.0, 1.0)]).verdict is WorthVerdict.NO
    assert weigh([stake(1.0, 1.0, pause_s=0.0)]).verdict is WorthVerdict.YES  # no job pauses
    slower = weigh([stake(0.5, 0.5)])
    assert slower.verdict is WorthVerdict.NO
    assert slower.gain_gpu_s.low == -400.0
    assert weigh([stake(1.0, 1.0)], admitted_gpu_s=5.0).verdict is WorthVerdict.YES
    with pytest.raises(ValueError, match="above 0"):
        weigh([stake(0.0, 1.0)])


def test_remaining_time() -> None:
    assert remaining_s(30, 100) == 70
    assert remaining_s(130, 100) == 0
    assert remaining_s(7200, None) == 7200
    assert remaining_s(0, None) == USUAL_RUN_S


def test_slowdown_is_an_interval_until_two_placements_were_measured() -> None:
    truth = StepProfile(compute_s=1.0, ring_s=1.0, hide=0.0)
    known = Calibration(4)
    assert slowdown(None, 0.5, 1.0) == PredictionInterval(1.0, 2.0)
    assert slowdown(known, 0.5, 1.0) == PredictionInterval(1.0, 2.0)
    known.observe(0.5, truth.step_s(4, 0.5))
    one = slowdown(known, 0.5, 1.0)
    real = truth.step_s(4, 0.5) / truth.step_s(4, 1.0)
    assert one.low <= real <= one.high
    assert not one.exact
    known.observe(1.0, truth.step_s(4, 1.0))
    two = slowdown(known, 0.5, 1.0)
    assert two.exact
    assert two.low == pytest.approx(real)
    back = slowdown(known, 1.0, 0.5)
    assert back.low == pytest.approx(1 / real)
    assert slowdown(known, None, 1.0) == slowdown(known, 1.0, 1.0) == PredictionInterval(1.0, 1.0)
