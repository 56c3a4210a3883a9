"""What a job's lines say about a loss: phases, steps lost, and lines in any order."""

from __future__ import annotations

import pytest

from testbed.demo.errors import DemoError
from testbed.demo.spare.trace import figures, read
from tests.unit.demo.spare.traces import AFTER, BEFORE, LOST_AT, line, run


def test_a_loss_is_split_in_phases_and_counts_lost_steps() -> None:
    runs = read([*BEFORE, *AFTER])
    loss = figures("red", runs, LOST_AT)["loss"]
    assert loss == {
        "steps_trained": 24,
        "step_restored": 20,
        "steps_lost": 4,
        "until_started_s": 2.5,
        "import_s": 10.0,
        "load_s": 5.0,
        "first_step_s": 2.0,
        "total_s": 19.5,
        "beyond_import_s": 9.5,
        "caught_up_s": 23.5,
    }


def test_completion_is_from_the_first_step_of_all_to_the_last() -> None:
    found = figures("red", read([*BEFORE, *AFTER]), LOST_AT)
    assert found["completion_s"] == pytest.approx(43 + 17 + 19 - 16)
    assert (found["starts"], found["checkpoints"], found["blocked_s_median"]) == (2, 1, 0.02)
    assert found["final_loss"] == 0.25


def test_lines_may_repeat_and_come_in_any_order_among_others() -> None:
    lines = ["Traceback", "[]", "{}", *BEFORE, *BEFORE, *AFTER]
    lines.sort()  # neither in time nor by run
    lines = lines[::-1]
    assert read(lines) == read([*BEFORE, *AFTER])


def test_a_start_at_zero_loses_all_steps() -> None:
    after = [*run(45.0, 0, 40), line("end", 110.0, final_loss=0.25)]
    loss = figures("red", read([*BEFORE, *after]), LOST_AT)["loss"]
    assert (loss["steps_lost"], loss["step_restored"]) == (24, 0)
    assert loss["caught_up_s"] == pytest.approx(45 + 17 + 24 - LOST_AT)


def test_a_start_that_died_before_its_first_step_belongs_to_the_loss() -> None:
    died = [line("begin", 42.0), line("start", 52.0)]
    later = [*run(60.0, 20, 20, restored=20), line("end", 99.0, final_loss=0.25)]
    found = figures("red", read([*BEFORE, *died, *later]), LOST_AT)
    assert found["loss"]["until_started_s"] == pytest.approx(60.0 - LOST_AT)
    assert found["starts"] == 3


def test_a_job_that_did_not_go_on_has_no_figures() -> None:
    with pytest.raises(DemoError, match="did not train to its end"):
        figures("red", read(BEFORE), LOST_AT)
    with pytest.raises(DemoError, match="did not go on"):
        figures("red", read([*BEFORE, line("end", 41.0, final_loss=0.5)]), LOST_AT)


def test_an_undisturbed_run_has_no_loss() -> None:
    found = figures("red", read([*BEFORE, line("end", 41.0, final_loss=0.5)]), None)
    assert found["loss"] is None
    assert found["step_s_median_after"] is None
