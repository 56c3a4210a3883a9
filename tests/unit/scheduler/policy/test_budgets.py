"""Pause budgets: cool-down, and pauses per job-hour."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scheduler.policy.budgets import PauseBudget, free_at, refusal_reason


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
