"""Stalls are detected from the ranks' throughput."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from controller.telemetry.stalls import History, Stall, judge

SENDING = [1e8, 1e8, 1e8, 1e8]
SILENT = [0.0, 900.0, 0.0, 0.0]
"""Heartbeats continue."""


def watch(rows: Sequence[Sequence[float | None]]) -> list[Stall | None]:
    """Judge one row per second."""
    history: History | None = None
    found = []
    for now, rates in enumerate(rows):
        history, stall = judge(history, rates, float(now))
        found.append(stall)
    return found


def test_silence_is_reported_within_ten_seconds() -> None:
    found = watch([SENDING] * 5 + [SILENT] * 12)
    assert found[:10] == [None] * 10
    assert found[10] == Stall(rank=None, silent_s=6.0)


def test_the_rank_that_fell_silent_first_is_named() -> None:
    found = watch([SENDING] * 5 + [[1e8, 1e8, 0.0, 1e8]] + [SILENT] * 9)
    last = found[-1]
    assert last is not None
    assert last.rank == 2


def test_a_job_that_sends_again_is_not_stalled() -> None:
    assert watch([SENDING] * 2 + [SILENT] * 10 + [SENDING])[-1] is None


def test_a_job_that_never_sent_is_not_stalled() -> None:
    assert watch([SILENT] * 60) == [None] * 60


def test_a_job_that_found_its_peers_and_loads_its_libraries_is_not_stalled() -> None:
    assert watch([SENDING] * 2 + [SILENT] * 60) == [None] * 62


def test_a_job_of_one_rank_is_never_stalled() -> None:
    assert watch([[1e8]] * 5 + [[0.0]] * 30) == [None] * 35


def test_a_job_with_one_sending_rank_is_not_stalled() -> None:
    assert watch([SENDING] * 3 + [[0.0, 0.0, 0.0, 1e8]] * 30) == [None] * 33


def test_a_stall_takes_twice_the_jobs_own_longest_pause() -> None:
    evaluates = [SENDING] * 3 + [SILENT] * 5
    assert watch(evaluates * 4) == [None] * 32
    found = watch(evaluates * 2 + [SENDING] + [SILENT] * 20)
    assert next(n for n, stall in enumerate(found) if stall) == 16 + 12


def test_unknown_rates_are_not_judged() -> None:
    assert watch([SENDING] * 3 + [[None] * 4] * 30) == [None] * 33
    assert watch([SENDING] * 3 + [[None, 0.0, 1e8, 0.0]] * 30) == [None] * 33
    assert watch([[None, 1e8, 0.0, 0.0]] * 3 + [[None, 0.0, 0.0, 0.0]] * 30) == [None] * 33


def test_a_lost_aggregator_hides_no_stall_of_the_other_ranks() -> None:
    """Its ranks' rates are not known; the others wait for them, and the job stands still."""
    found = watch([SENDING] * 5 + [[None, None, 0.0, 900.0]] * 12)
    assert found[:10] == [None] * 10
    assert found[10] == Stall(rank=None, silent_s=6.0)


@given(st.lists(st.lists(st.floats(0, 1e9), min_size=2, max_size=5), max_size=40))
def test_no_stall_without_six_seconds_of_silence(rows: list[list[float]]) -> None:
    for at, stall in enumerate(watch(rows)):
        if stall is not None:
            peak = max(max(rates) for rates in rows[: at + 1])
            quiet = rows[at - 5 : at + 1]
            assert all(rate <= max(1e4, peak / 100) for rates in quiet for rate in rates)
