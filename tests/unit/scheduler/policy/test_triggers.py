"""Triggers: when a regroup is planned without a request."""

from __future__ import annotations

from dataclasses import replace

from scheduler.policy.triggers import (
    Blocked,
    Trigger,
    TriggerInput,
    TriggerPolicy,
    excess_since,
    fire,
)

NOON = 86400.0 * 100 + 43200.0
QUIET = TriggerInput(NOON, excess_span=0, excess_since=None, scheduled_at=NOON - 10)


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
