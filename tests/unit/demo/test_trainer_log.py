import json
from typing import Any

import pytest

from testbed.demo import DemoError
from testbed.demo.trainer_log import EndLine, StepLine, TrainerLog, longest_gap_s


def step_line(step: int, t: float, step_s: float = 1.0, **other: Any) -> str:
    fields = {"compute_s": 0.2, "comm_s": 0.8, "samples_s": 192.0, "loss": 2.3, **other}
    return json.dumps({"event": "step", "step": step, "t": t, "step_s": step_s, **fields})


def end_line(**other: Any) -> str:
    fields = {
        "completion_s": 2.0,
        "samples_s": 192.0,
        "final_loss": 0.5,
        "accuracy": 0.8,
        "step_s_median": 1.0,
        "exposed_comm_fraction": 0.8,
    }
    return json.dumps({"event": "end", "t": 12.0, "rank": 0, **fields, **other})


def test_collects_all_ranks() -> None:
    log = TrainerLog("red", ranks=2)
    log.add(0, json.dumps({"event": "start", "t": 1.0, "gradient_bytes": 4_088_680}))
    for rank in (0, 1):
        assert isinstance(log.add(rank, step_line(0, 11.0)), StepLine)
        assert isinstance(log.add(rank, step_line(1, 12.0)), StepLine)
    assert isinstance(log.add(0, end_line()), EndLine)
    assert not log.complete
    log.add(1, end_line(exposed_comm_fraction=0.6))
    assert log.complete
    assert log.gradient_bytes == 4_088_680
    assert (log.started_at, log.ended_at) == (10.0, 12.0)
    assert log.exposed_comm_fraction == pytest.approx(0.7)


@pytest.mark.parametrize(
    "text", ["", "WARNING: absl", "[1]", '"x"', '{"a": 1}', '{"event": "ready"}']
)
def test_skips_lines_of_other_programs(text: str) -> None:
    assert TrainerLog("red", ranks=1).add(0, text) is None


def test_skips_a_repeated_step() -> None:
    log = TrainerLog("red", ranks=1)
    log.add(0, step_line(4, 1.0))
    assert log.add(0, step_line(4, 1.0)) is None
    assert log.add(0, step_line(3, 0.5)) is None
    assert len(log.steps[0]) == 1


def test_failed_training_is_an_error_with_the_trainers_message() -> None:
    text = json.dumps({"event": "error", "kind": "UnavailableError", "error": "reset by peer"})
    with pytest.raises(DemoError, match="rank 2: UnavailableError: reset by peer") as caught:
        TrainerLog("red", ranks=4).add(2, text)
    assert caught.value.object == "job/red"


@pytest.mark.parametrize(
    "text",
    [
        '{"event": "step", "step": 1}',
        step_line(0, 1.0, loss="much"),
        '{"event": "end"}',
        '{"event": "start"}',
    ],
)
def test_a_line_of_another_version_is_an_error(text: str) -> None:
    with pytest.raises(DemoError, match="cannot be parsed"):
        TrainerLog("red", ranks=1).add(0, text)


def lines(*lengths: float) -> list[StepLine]:
    found, t = [], 100.0
    for step, length in enumerate(lengths):
        t += length
        found.append(StepLine(step, t, length, 0.2, length - 0.2, 1.0, 2.0))
    return found


def test_gap_without_a_regroup_is_the_excess_over_the_median() -> None:
    assert longest_gap_s(lines(1.0, 1.0, 1.5, 1.0), None) == pytest.approx(0.5)


def test_gap_at_a_regroup_counts_against_the_shorter_steps_after_it() -> None:
    # Steps of 2 s, a regroup from 104.5 to 105.5 in the third step, steps of 0.5 s after it.
    steps = lines(2.0, 2.0, 2.5, 0.5, 0.5, 0.5)
    assert longest_gap_s(steps, (104.5, 105.5)) == pytest.approx(2.0)


def test_a_slow_step_before_the_regroup_counts_against_its_own_time() -> None:
    steps = lines(2.0, 2.9, 2.0, 0.5, 0.5, 0.5)
    assert longest_gap_s(steps, (106.95, 107.0)) == pytest.approx(0.9)


def test_regroup_in_the_last_step() -> None:
    assert longest_gap_s(lines(1.0, 1.0, 3.0), (103.0, 104.0)) == pytest.approx(2.0)
