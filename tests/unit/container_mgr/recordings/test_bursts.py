from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container_mgr.recordings.bursts import Bursts, Tick, find
from container_mgr.recordings.recordings import next_window
from container_mgr.recordings.wire import TICKS, WINDOW_S
from scheduler.steptime.identify import LEAST_STEPS

RATE = 10e6


def ticks(
    busy: Sequence[tuple[float, float]], window_s: float, *, every_s: float = 0.02, late: float = 0
) -> list[Tick]:
    """Return ticks of a NIC that sends at RATE in these intervals; ``late``: jitter of a tick."""
    chance, found, now = random.Random(1), [], 0.0  # noqa: S311
    while now <= window_s:
        sent = sum(max(0.0, min(end, now) - begin) for begin, end in busy)
        found.append(Tick(now, round(sent * RATE)))
        now += every_s * (1 + late * chance.random())
    return found


def square(period_s: float, burst_s: float, window_s: float, phase: float = 0.3) -> list[Tick]:
    count = int(window_s / period_s) + 2
    begins = [(k + phase) * period_s for k in range(count)]
    return ticks([(b, b + burst_s) for b in begins], window_s, late=0.2)


@given(
    period=st.floats(0.2, 1.2),
    duty=st.floats(0.15, 0.8),
    phase=st.floats(0.0, 0.99),
)
def test_a_square_wave_is_measured(period: float, duty: float, phase: float) -> None:
    found = find(square(period, duty * period, 5.0 + 4 * period, phase))
    assert found is not None
    assert found.period_s == pytest.approx(period, rel=0.05, abs=0.012)
    assert found.burst_s == pytest.approx(duty * period, abs=0.045)
    assert found.sent_bytes == pytest.approx(duty * period * RATE, rel=0.05, abs=0.05 * RATE)


@given(seed=st.integers(0, 1000), noise=st.floats(0, 0.03))
def test_jitter_and_small_traffic_change_little(seed: int, noise: float) -> None:
    chance, busy, at = random.Random(seed), [], 0.1  # noqa: S311
    while at < 8:
        busy.append((at, at + 0.15))
        at += 0.5 * (1 + 0.05 * (chance.random() - 0.5))
    plain = ticks(busy, 8.0)
    small = [Tick(t.time_s, t.sent_bytes + round(noise * RATE * t.time_s)) for t in plain]
    found = find(small)
    assert found is not None
    assert found.period_s == pytest.approx(0.5, rel=0.05)
    assert found.spread is not None
    assert found.spread < 0.1


def test_buckets_of_one_step_are_one_burst() -> None:
    busy = [
        (step + part * 0.12, step + part * 0.12 + 0.06)
        for step in (k * 0.8 + 0.2 for k in range(10))
        for part in range(3)
    ]
    found = find(ticks(busy, 8.0))
    assert found is not None
    assert found.period_s == pytest.approx(0.8, rel=0.03)
    assert found.sent_bytes == pytest.approx(0.18 * RATE, rel=0.1)


@given(seed=st.integers(0, 10_000))
def test_steps_of_a_busy_machine_have_the_same_bytes(seed: int) -> None:
    """Steps take 0.45 to 0.9 s and stall up to five times while they send 4 MB."""
    chance, busy, begins, at = random.Random(seed), [], [], 0.2  # noqa: S311
    while at < 9:
        begins.append(at)
        parts = sorted(chance.uniform(0.03, 0.37) for _ in range(chance.randint(0, 5)))
        for begin, end in pairwise([0.0, *parts, 0.4]):
            busy.append((at, at + end - begin))
            at += end - begin + chance.uniform(0.02, 0.05)
        at += chance.uniform(0.08, 0.3)
    found = find(ticks(busy, 8.0))
    assert found is not None
    assert found.sent_bytes == pytest.approx(0.4 * RATE, rel=0.1)
    periods = sorted(b - a for a, b in pairwise(begins))
    assert found.period_s is not None
    assert periods[0] * 0.9 <= found.period_s <= periods[-1] * 1.1


def test_a_pause_between_epochs_does_not_join_steps() -> None:
    begins = [0.1 + 0.25 * k for k in range(10)] + [4.5 + 0.25 * k for k in range(10)]
    found = find(ticks([(b, b + 0.1) for b in begins], 7.0))
    assert found is not None
    assert found.period_s == pytest.approx(0.25, rel=0.05)


def test_silence_has_no_period() -> None:
    assert find(ticks([], 5.0)) == Bursts(window_s=pytest.approx(5.0, abs=0.03), bursts=0)


def test_traffic_without_gaps_has_no_period() -> None:
    found = find(ticks([(0, 10)], 5.0))
    assert found is not None
    assert (found.bursts, found.period_s) == (1, None)


def test_counters_that_run_backwards_are_nothing() -> None:
    assert find([Tick(0, 10), Tick(1, 5), Tick(2, 20)]) is None
    assert find([Tick(0, 10), Tick(0, 15), Tick(2, 20)]) is None
    assert find([Tick(0, 0), Tick(1, 10**6)]) is None


@given(st.lists(st.tuples(st.floats(1e-6, 1e3), st.integers(0, 2**62)), min_size=0, max_size=60))
def test_any_counters_give_possible_figures(steps: list[tuple[float, int]]) -> None:
    now, sent, made = 0.0, 0, [Tick(0.0, 0)]
    for seconds, more in steps:
        now, sent = now + seconds, sent + more
        made.append(Tick(now, sent))
    found = find(made)
    if found is None or found.period_s is None:
        return
    assert 0 < found.period_s <= found.window_s
    assert found.burst_s is not None
    assert 0 <= found.burst_s <= found.window_s
    assert found.sent_bytes is not None
    assert 0 <= found.sent_bytes <= sent


@pytest.mark.parametrize("period_s", [0.1, 0.6, 1.2, 2.0])
def test_the_window_after_the_first_holds_enough_steps_for_the_step_model(period_s: float) -> None:
    window_s = WINDOW_S
    for _ in range(3):
        count = int(window_s / period_s) + 2
        begins = [(k + 0.3) * period_s for k in range(count)]
        busy = [(b, b + period_s / 2) for b in begins]
        found = find(ticks(busy, window_s, every_s=window_s / TICKS))
        assert found is not None
        window_s = next_window(found)
    assert found.bursts - 1 >= LEAST_STEPS
    assert found.period_s == pytest.approx(period_s, rel=0.05)
