"""Triggers, budgets and worth: when a regroup is planned, and whether it is carried out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.policy.budgets import PauseBudget, free_at, refusal_reason
from scheduler.policy.triggers import (
    Blocked,
    Moment,
    Trigger,
    TriggerPolicy,
    excess_since,
    fire,
)
from scheduler.policy.worth import USUAL_RUN_S, Stake, WorthVerdict, remaining_s, slowdown, weigh
from scheduler.steptime.calibrate import Calibration, Interval
from scheduler.steptime.profile import StepProfile
from scheduler.steptime.sites import SharedLinks

NOON = 86400.0 * 100 + 43200.0
QUIET = Moment(NOON, excess_span=0, excess_since=None, scheduled_at=NOON - 10)


def test_nothing_fires_by_default() -> None:
    policy = TriggerPolicy()
    assert not policy.automatic
    busy = replace(QUIET, excess_span=9, blocked=(Blocked("red", 1),), scheduled_at=0.0)
    assert fire(policy, busy) is None


def test_threshold_fires_only_when_it_lasts() -> None:
    policy = TriggerPolicy(excess_span=2, excess_for_s=60)
    assert policy.automatic
    since = excess_since(policy, None, 3, NOON)
    assert since == NOON
    assert excess_since(policy, since, 2, NOON + 30) == NOON
    assert excess_since(policy, since, 1, NOON + 30) is None
    early = replace(QUIET, now=NOON + 59, excess_span=3, excess_since=since)
    assert fire(policy, early) is None
    fired = fire(policy, replace(early, now=NOON + 60))
    assert fired
    assert (fired.trigger, fired.job) == (Trigger.THRESHOLD, None)
    assert "excess span has been 2 or more for 60 s" in fired.reason


def test_pending_job_fires_first_and_names_itself() -> None:
    policy = TriggerPolicy(pending=True, excess_span=1, excess_for_s=0)
    moment = replace(QUIET, excess_span=1, excess_since=NOON, blocked=(Blocked("red", 2),))
    fired = fire(policy, moment)
    assert fired
    assert (fired.trigger, fired.job) == (Trigger.PENDING, "red")
    off = fire(replace(policy, pending=False), moment)
    assert off
    assert off.trigger is Trigger.THRESHOLD


def test_schedule_by_interval_and_by_the_clock() -> None:
    every = TriggerPolicy(every_s=3600)
    assert fire(every, replace(QUIET, scheduled_at=NOON - 3599)) is None
    assert fire(every, replace(QUIET, scheduled_at=NOON - 3600))
    daily = TriggerPolicy(daily_at_s=(43200.0,))
    assert fire(daily, replace(QUIET, now=NOON - 1, scheduled_at=NOON - 86400 + 1)) is None
    fired = fire(daily, replace(QUIET, scheduled_at=NOON - 1))
    assert fired
    assert fired.reason == "daily at 12:00 UTC"
    assert fire(daily, replace(QUIET, now=NOON + 5, scheduled_at=NOON)) is None


def test_triggered_runs_keep_their_distance() -> None:
    policy = TriggerPolicy(pending=True, min_interval_s=300)
    moment = replace(QUIET, blocked=(Blocked("red", 1),), looked_at=NOON - 299)
    assert fire(policy, moment) is None
    assert fire(policy, replace(moment, looked_at=NOON - 300))


@given(
    cooldown=st.floats(0, 1000),
    per_hour=st.one_of(st.none(), st.floats(0.1, 20)),
    asked=st.lists(st.floats(0, 20000), max_size=40),
)
def test_pauses_never_exceed_the_budget(
    cooldown: float, per_hour: float | None, asked: list[float]
) -> None:
    budget = PauseBudget(cooldown, per_hour)
    pauses: list[float] = []
    for now in sorted(asked):
        free = free_at(budget, pauses, now) <= now
        assert free == (not refusal_reason(budget, pauses, now))
        if free:
            pauses.append(now)
    gaps = [b - a for a, b in pairwise(pauses)]
    assert all(gap >= cooldown - 1e-6 for gap in gaps)
    if per_hour is not None:
        window = 3600 * max(1.0, 1 / per_hour)
        for at in pauses:
            inside = [p for p in pauses if at - window + 1e-6 < p <= at]
            assert len(inside) <= per_hour * window / 3600 + 1e-6


def test_a_budget_of_zero_allows_no_pause() -> None:
    assert free_at(PauseBudget(0, 0), [], 1.0) == float("inf")
    assert "budget of pauses is 0" in refusal_reason(PauseBudget(0, 0), [], 1.0)
    assert "cool-down is 60 s" in refusal_reason(PauseBudget(60), [100.0], 130.0)
    assert "free in 3000 s" in refusal_reason(PauseBudget(0, 1), [400.0], 1000.0)


def stake(low: float, high: float, pause_s: float = 1.0) -> Stake:
    return Stake("red", 4, Interval(low, high), remaining_s=100.0, pause_s=pause_s)


def test_worth_of_a_plan() -> None:
    sure = weigh([stake(2.0, 2.0)])
    assert (sure.verdict, sure.gain_gpu_s, sure.cost_gpu_s) == (
        WorthVerdict.YES,
        Interval(200.0, 200.0),
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
    assert slowdown(None, 0.5, 1.0) == Interval(1.0, 2.0)
    assert slowdown(known, 0.5, 1.0) == Interval(1.0, 2.0)
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
    assert slowdown(known, None, 1.0) == slowdown(known, 1.0, 1.0) == Interval(1.0, 1.0)


def test_rates_of_a_site() -> None:
    roads = SharedLinks(250e6, 114e6)
    homes = {"a": "as0", "b": "as0", "c": "as1", "d": "as1", "e": None}
    ordered = roads.rates({"red": ["a", "b", "c", "d"], "dark": ["a", "e"]}, homes)
    assert ordered == {"red": pytest.approx(114 / 250)}
    mixed = roads.rates({"red": ["a", "c", "b", "d"]}, homes)
    assert mixed["red"] == pytest.approx(114 / 250 / 2)
    doubled = SharedLinks(250e6, 114e6, {frozenset({"as0", "as1"}): 2})
    assert doubled.rates({"red": ["a", "b", "c", "d"]}, homes)["red"] == pytest.approx(228 / 250)
    assert roads.rates({"red": ["a", "b"]}, homes) == {"red": 1.0}
