"""Recoveries as documents: phases that add up, and null for what is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.state.kept.phases import figures
from controller.state.kept.recoveries import RecoveryRecord
from controller.views.recoveries import view_of

MARKS = {
    "detected": 1.0,
    "decided": 1.1,
    "stopped": 1.3,
    "lit": 1.6,
    "fetched": 1.5,
    "started": 2.0,
    "imported": 5.0,
    "stepped": 6.0,
}
ROW = RecoveryRecord(
    id="r1",
    job="red",
    submitted_at=1.0,
    number=1,
    epoch=3,
    cause="endpoint",
    objects=("endpoint/gpu1",),
    stage="over",
    gpus=4,
    failed_at=100.0,
    finished_at=106.0,
    step_written=12,
    step_restored=10,
    repeated_s=3.0,
    marks=MARKS,
)


def test_all_marks_add_up() -> None:
    view = view_of(ROW)
    assert view.total_s == 6.0 and view.steps_lost == 2
    assert view.own_s == pytest.approx(2.0)
    assert view.gpu_hours_lost == pytest.approx(4 * 9 / 3600)
    parts = (view.detect_s, view.decide_s, view.start_s, view.import_s)
    assert None not in (*parts, view.stop_s, view.light_s, view.fetch_s, view.first_step_s)


def test_what_is_not_known_is_null() -> None:
    known = {k: v for k, v in MARKS.items() if k != "imported"}
    view = view_of(replace(ROW, marks=known, step_written=None))
    assert (view.import_s, view.first_step_s, view.steps_lost) == (None,) * 3
    assert view.total_s == 6.0 and view.start_s == pytest.approx(0.4)


def test_a_row_that_outlived_a_controller_has_no_phases() -> None:
    assert figures(replace(ROW, broken=True)) == {}
    assert view_of(replace(ROW, broken=True)).gpu_hours_lost == pytest.approx(4 * 9 / 3600)
