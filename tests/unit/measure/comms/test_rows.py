from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measure.comms.rows import Sums, factor, job_rows, key_of, rank_rows, table
from measure.comms.skew import skews
from tests.parts.measure.recordings import operation, recording

DURATIONS = st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=50)


@pytest.mark.parametrize(
    ("op", "expected"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("alltoall", 0.75), ("broadcast", 1), ("other", 1)],
)
def test_factors_are_those_of_nccl_tests(op: str, expected: float) -> None:
    assert factor(op, 4) == expected
    assert factor(op, 1) == 1


@given(DURATIONS)
def test_the_median_is_right_to_its_bin(durations: list[float]) -> None:
    found = Sums.of(operation(durations=durations))
    low, high = sorted(durations)[(len(durations) - 1) // 2], sorted(durations)[len(durations) // 2]
    assert found.p50_s is not None
    assert low / 2**0.26 <= found.p50_s <= high * 2**0.26
    assert found.avg_s == pytest.approx(sum(durations) / len(durations))


@given(DURATIONS, DURATIONS)
def test_later_calls_are_what_is_left(before: list[float], later: list[float]) -> None:
    old = Sums.of(operation(durations=before))
    found = Sums.of(operation(durations=before + later)).since(old)
    assert found.calls == len(later)
    assert found.total_s == pytest.approx(sum(later), abs=1e-9)
    assert found.timed == len(later)
    assert found.min_s <= min(later) * (1 + 1e-9)
    assert found.max_s >= max(later) * (1 - 1e-9)


def test_a_recorder_that_began_anew_counts_from_zero() -> None:
    old, new = (Sums.of(operation(durations=[0.1] * n)) for n in (9, 4))
    assert new.since(old) == new
    assert new.since(None) == new


def test_a_job_sums_calls_and_shows_the_slowest_rank() -> None:
    fast, slow = (table([operation(size=10**6, durations=[t] * 10)]) for t in (0.01, 0.02))
    (row,) = job_rows([fast, slow], 4)
    assert (row.rank, row.sums.calls) == (None, 20)
    assert row.avg_s == pytest.approx(0.02)
    assert row.longest_s == pytest.approx(0.2)
    assert row.busbw == pytest.approx(10**6 / 0.02 * 1.5)
    assert (row.sums.min_s, row.sums.max_s) == (0.01, 0.02)


def test_rows_are_by_time() -> None:
    sums = table(
        [operation(size=1, durations=[0.1]), operation(size=2, durations=[0.3]), operation(size=3)]
    )
    assert [row.key[1] for row in rank_rows(5, sums, 2)] == [2, 1]


def test_the_time_of_an_issue_is_no_bandwidth() -> None:
    (row,) = rank_rows(0, table([operation(durations=[0.1], timing="issue")]), 2)
    assert row.busbw is None


def test_sampled_times_stand_for_all_calls() -> None:
    sampled = operation(durations=[0.1] * 10, calls=100, total_s=10.0, exact=False)
    assert Sums.of(sampled).avg_s == pytest.approx(0.1)


def test_waiting_is_told_from_transfer() -> None:
    # Rank 1 comes 0.3 s late: it sees the transfer, rank 0 sees waiting as well.
    waits = recording([(8, 10.0 * k, 10.0 * k + 0.5) for k in range(5)], rank=0)
    late = recording([(8, 99.0 + 10 * k, 99.2 + 10 * k) for k in range(5)], rank=1)
    (key,) = {key_of(o) for o in waits.operations}
    found = skews([waits, late])[key]
    assert found.transfer_s == pytest.approx(0.2)
    assert found.skew_s == pytest.approx(0.3)
    assert (found.calls, found.last) == (5, {1: 5})


def test_one_rank_has_no_skew() -> None:
    assert skews([recording([(8, 1.0, 1.1)])]) == {}
    assert skews([recording([(8, 1.0, None)]), recording([(8, 1.0, 1.2)], rank=1)]) == {}
