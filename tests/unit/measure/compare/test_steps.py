"""What a run's lines tell of its steps."""

from __future__ import annotations

import pytest

from measure.compare.settings import WARM_UP
from measure.compare.steps import facts_of_run, steps_of
from measure.kinds import Line


def lines(rank: int, compute_s: float, comm_s: float, count: int = 40) -> list[Line]:
    record = {"event": "step", "compute_s": compute_s, "comm_s": comm_s}
    record["step_s"] = compute_s + comm_s
    return [Line(0, rank, record) for _ in range(count)]


def test_waiting_for_a_late_rank_is_no_communication() -> None:
    # Rank 0 computes for 0.1 s and waits 0.2 s for rank 1; the transfer takes 0.1 s.
    said = [*lines(0, 0.1, 0.3), *lines(1, 0.3, 0.1)]
    steps = steps_of(said, 0, 100)
    assert len(steps.step_s) == 40 - WARM_UP
    assert set(steps.compute_s) == {0.3} and set(steps.comm_s) == {0.1}
    found = facts_of_run(2, [steps], [])
    assert found is not None
    facts, payload = found
    assert payload
    assert facts.step_s == pytest.approx(0.4)
    assert (facts.comm_s, facts.exposed_s) == (pytest.approx(0.1), pytest.approx(0.1))


def test_a_rank_that_printed_less_is_left_out() -> None:
    said = [*lines(0, 0.1, 0.3), *lines(1, 0.3, 0.1, count=15)]
    assert set(steps_of(said, 0, 100).comm_s) == {0.3}


def test_parts_that_one_rank_does_not_print_are_not_known() -> None:
    silent = [Line(0, 1, {"event": "step", "step_s": 0.4})] * 40
    steps = steps_of([*lines(0, 0.1, 0.3), *silent], 0, 100)
    assert steps.step_s and not steps.comm_s


def test_ranks_that_leave_a_collective_late_have_not_computed() -> None:
    """In turns a rank leaves 0.4 s after the other one, and enters the next collective last."""
    said = []
    for number in range(40):
        late, ring = number % 2, 1.0
        for rank in (0, 1):
            comm = ring + 0.2 if rank == late else ring - 0.2
            record = {"event": "step", "step_s": 0.1 + comm, "compute_s": 0.1, "comm_s": comm}
            said.append(Line(0, rank, record))
    told = facts_of_run(2, [steps_of(said, 0, 100)], [])
    assert told is not None
    facts = told[0]
    assert facts.step_s - facts.exposed_s == pytest.approx(0.1)
    assert facts.comm_s == facts.exposed_s == pytest.approx(1.0)


def test_what_a_step_does_besides_its_parts_is_no_communication() -> None:
    said = lines(0, 0.3, 0.1) + lines(1, 0.3, 0.1)
    for line in said:
        line.record["step_s"] = 0.5
    told = facts_of_run(2, [steps_of(said, 0, 100)], [])
    assert told is not None
    assert (told[0].comm_s, told[0].exposed_s) == (pytest.approx(0.1), pytest.approx(0.1))
