from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from controller.telemetry.stalls import History, Stall, judge

TALK = [1e8, 1e8, 1e8, 1e8]
HUSH = [0.0, 900.0, 0.0, 0.0]
"""Heartbeats go on."""


def watch(looks: Sequence[Sequence[float | None]]) -> list[Stall | None]:
    """One look a second."""
    history: History | None = None
    found = []
    for now, rates in enumerate(looks):
        history, stall = judge(history, rates, float(now))
        found.append(stall)
    return found


def test_silence_is_told_within_ten_seconds() -> None:
    found = watch([TALK] * 5 + [HUSH] * 12)
    assert found[:10] == [None] * 10
    assert found[10] == Stall(rank=None, silent_s=6.0)


def test_who_fell_silent_first_is_named() -> None:
    found = watch([TALK] * 5 + [[1e8, 1e8, 0.0, 1e8]] + [HUSH] * 9)
    last = found[-1]
    assert last is not None
    assert last.rank == 2


def test_a_job_that_goes_on_is_no_stall_any_more() -> None:
    assert watch([TALK] * 2 + [HUSH] * 10 + [TALK])[-1] is None


def test_a_job_that_never_talked_only_computes() -> None:
    assert watch([HUSH] * 60) == [None] * 60


def test_one_rank_has_no_siblings() -> None:
    assert watch([[1e8]] * 5 + [[0.0]] * 30) == [None] * 35


def test_one_that_talks_is_enough() -> None:
    assert watch([TALK] * 3 + [[0.0, 0.0, 0.0, 1e8]] * 30) == [None] * 33


def test_a_job_with_long_pauses_of_its_own_is_given_twice_as_long() -> None:
    evaluates = [TALK] * 3 + [HUSH] * 5
    assert watch(evaluates * 4) == [None] * 32
    found = watch(evaluates * 2 + [TALK] + [HUSH] * 20)
    assert next(n for n, stall in enumerate(found) if stall) == 16 + 12


def test_what_cannot_be_seen_is_not_judged() -> None:
    assert watch([TALK] * 3 + [[None, 0.0, 0.0, 0.0]] * 30) == [None] * 33


@given(st.lists(st.lists(st.floats(0, 1e9), min_size=2, max_size=5), max_size=40))
def test_no_stall_without_six_seconds_of_silence(looks: list[list[float]]) -> None:
    for at, stall in enumerate(watch(looks)):
        if stall is not None:
            peak = max(max(rates) for rates in looks[: at + 1])
            quiet = looks[at - 5 : at + 1]
            assert all(rate <= max(1e4, peak / 100) for rates in quiet for rate in rates)
