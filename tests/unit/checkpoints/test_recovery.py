from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints.recovery import Marks, recovery

MARKS = Marks(
    failed=100.0,
    detected=100.4,
    decided=100.5,
    stopped=100.9,
    lit=101.1,
    fetched=101.6,
    started=102.0,
    imported=105.0,
    stepped=106.0,
)


def test_fetching_runs_beside_stop_and_light() -> None:
    row = recovery(120, 110, MARKS)
    assert row.fetch_s == pytest.approx(1.1) and row.stop_s + row.light_s == pytest.approx(0.6)
    assert row.start_s == pytest.approx(0.4)
    assert row.total_s == pytest.approx(6.0)
    assert row.own_s == pytest.approx(2.0)
    assert row.steps_lost == 10


@given(st.lists(st.floats(0, 1e4), min_size=8, max_size=8), st.floats(0, 1e9))
def test_sums_hold_for_all_lengths(lengths: list[float], start: float) -> None:
    detect, decide, stop, light, fetch, begin, imports, step = lengths
    decided = start + detect + decide
    lit, fetched = decided + stop + light, decided + fetch
    started = max(lit, fetched) + begin
    marks = Marks(
        failed=start,
        detected=start + detect,
        decided=decided,
        stopped=min(decided + stop, lit),
        lit=lit,
        fetched=fetched,
        started=started,
        imported=started + imports,
        stepped=started + imports + step,
    )
    row = recovery(5, 5, marks)
    assert row.total_s == pytest.approx(row.path_s, abs=1e-5)


@pytest.mark.parametrize(
    "marks",
    [
        replace(MARKS, detected=99.0),
        replace(MARKS, started=101.5),
        replace(MARKS, imported=float("nan")),
        replace(MARKS, stepped=float("inf")),
    ],
)
def test_marks_out_of_order_are_refused(marks: Marks) -> None:
    with pytest.raises(ValueError, match="no length"):
        recovery(120, 110, marks)


def test_rows_that_do_not_add_up_are_refused() -> None:
    row = recovery(120, 110, MARKS)
    with pytest.raises(ValueError, match="phases sum to"):
        replace(row, total_s=7.0)
    with pytest.raises(ValueError, match="steps lost"):
        replace(row, steps_lost=9)
    with pytest.raises(ValueError, match="is restored where"):
        replace(row, step_restored=121, steps_lost=-1)
