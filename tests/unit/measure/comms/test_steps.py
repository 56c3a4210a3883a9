from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.devices.engine import WireBursts
from measure.comms.facts import PAYLOAD, facts, input_wait_s, overlaps, slowest
from measure.comms.steps import steps_of, weight
from tests.parts.measure.recordings import operation, recording, training

MB = 10**6


def test_hidden_and_exposed_communication_are_told_apart() -> None:
    # Two buckets while the backward pass runs, one at its end: 0.3 s of 0.5 s are covered.
    one = training(20, 1.0, [(MB, 0.5, 0.2), (2 * MB, 0.7, 0.1), (3 * MB, 1.0, 0.2)])
    found = steps_of(one, 2)
    assert found is not None
    assert found.step_s == pytest.approx(1.2)
    assert found.comm_s == pytest.approx(0.5)
    assert found.exposed_s == pytest.approx(0.2)
    assert found.overlap == pytest.approx(0.6)
    assert found.compute_s == pytest.approx(1.0)
    assert (found.calls, found.bytes, found.steps) == (3, 6 * MB, 19)


def test_calls_that_wait_for_each_other_are_exposed_altogether() -> None:
    one = training(20, 1.0, [(MB, 1.0, 0.1), (MB, 1.1001, 0.1), (MB, 1.2002, 0.1)])
    found = steps_of(one, 2)
    assert found is not None
    assert found.exposed_s == pytest.approx(0.3, abs=0.001)
    assert found.overlap == pytest.approx(0.0, abs=0.001)
    assert found.calls == 3


def test_buckets_of_equal_size_are_one_step() -> None:
    one = training(30, 0.4, [(MB, 0.2, 0.05), (MB, 0.3, 0.05), (MB, 0.4, 0.05)])
    found = steps_of(one, 4)
    assert found is not None
    assert found.step_s == pytest.approx(0.45)
    assert found.calls == 3


@given(
    compute=st.floats(0.05, 2.0),
    buckets=st.lists(
        st.tuples(st.integers(1, 10**9), st.floats(0.1, 1.0), st.floats(0.001, 0.4)),
        min_size=1,
        max_size=6,
    ),
    offset=st.floats(0, 1e6),
)
def test_any_training_is_recovered(
    compute: float, buckets: list[tuple[int, float, float]], offset: float
) -> None:
    ordered = sorted((at * compute, size, length * compute) for size, at, length in buckets)
    made = [(size, at, length) for at, size, length in ordered]
    found = steps_of(training(24, compute, made, offset_s=offset), 2)
    assert found is not None
    reached = 0.0
    for _, at, length in made:
        reached = max(reached, at) + length
    step_s = max(compute, reached)
    assert found.step_s * found.bytes == pytest.approx(
        found.step_s * sum(s for s, _, _ in made)
    ) or (len({s for s, _, _ in made}) < len(made))
    assert found.comm_s is not None
    assert found.exposed_s is not None
    assert 0 <= found.exposed_s <= found.comm_s + 1e-6
    assert found.comm_s <= found.step_s + 1e-6
    if len({s for s, _, _ in made}) == len(made):  # the pattern is unique
        assert found.step_s == pytest.approx(step_s, rel=1e-3, abs=1e-6)
        assert found.calls == len(made)


def test_set_up_and_waiting_for_input_are_no_calls_of_a_step() -> None:
    one = training(20, 1.0, [(MB, 1.0, 0.1)])
    before = recording([(5, k / 100, k / 100 + 0.001) for k in range(40)], tag="setup")
    rows = (*before.operations, *one.operations)
    shifted = [type(c)(c.operation + 1, c.sequence, c.issued_s, c.ended_s, 7) for c in one.calls]
    both = type(one)(
        job="red", rank=0, epoch=1, server="srv0", state="recording",
        operations=rows, calls=(*before.calls, *shifted),
    )  # fmt: skip
    found = steps_of(both, 2)
    assert found is not None
    assert found.step_s == pytest.approx(1.1)


def test_a_checkpoint_between_steps_does_not_count() -> None:
    calls = [
        (MB, 1.0 * k + (60 if k > 10 else 0), 1.0 * k + 0.1 + (60 if k > 10 else 0))
        for k in range(20)
    ]
    found = steps_of(recording(calls), 2)
    assert found is not None
    assert found.step_s == pytest.approx(1.0)


def test_a_log_of_the_loss_every_tenth_step_does_not_hide_the_steps() -> None:
    calls, now = [], 0.0
    for step in range(60):
        calls += [(MB, now + 0.5, now + 0.6), (2 * MB, now + 0.7, now + 0.8)]
        if step % 40 == 39:
            calls.append((4, now + 0.81, now + 0.82))
        now += 1.0
    found = steps_of(recording(calls), 2)
    assert found is not None
    assert found.step_s == pytest.approx(1.0, rel=0.05)


def test_without_a_pattern_there_are_no_steps() -> None:
    assert steps_of(recording([]), 2) is None
    assert steps_of(recording([(k, 1.0 * k, k + 0.1) for k in range(1, 50)]), 2) is None


def test_a_byte_of_another_operation_loads_a_ring_less() -> None:
    assert weight("all_reduce", 4) == 1
    assert weight("all_gather", 4) == weight("reduce_scatter", 4) == 0.5
    assert weight("broadcast", 4) == pytest.approx(4 / 6)


def test_facts_are_those_of_the_rank_that_the_others_wait_for() -> None:
    slow = training(20, 1.0, [(MB, 1.0, 0.1)], rank=1)
    fast = training(20, 0.6, [(MB, 0.6, 0.5)], rank=0)
    found = facts([fast, slow], 2)
    assert found is not None
    assert found.step_s == pytest.approx(1.1)
    assert found.exposed_s == pytest.approx(0.1)
    assert found.bytes_per_step == MB
    assert (found.source, found.ranks, found.calls_per_step) == ("torch", 2, 1)
    chosen = slowest(overlaps([fast, slow], 2))
    assert chosen is not None
    assert (chosen.rank, chosen.definition) == (1, "timeline")


WIRE = WireBursts(
    time=1.0, window_s=5.0, bursts=9, period_s=0.5, burst_s=0.2, sent_bytes=1e6, spread=0.02
)


def test_bursts_stand_in_for_calls() -> None:
    found = facts([recording([], wire=WIRE)], 4)
    assert found is not None
    assert (found.step_s, found.comm_s, found.exposed_s) == (0.5, 0.2, 0.2)
    assert found.bytes_per_step == pytest.approx(1e6 * PAYLOAD / 1.5)
    assert (found.source, found.spread) == ("wire", 0.02)


@pytest.mark.parametrize("others", [1, 2, 3])
def test_a_rank_that_pauses_within_its_steps_is_not_believed(others: int) -> None:
    half = replace(WIRE, period_s=0.275, burst_s=0.1, sent_bytes=5e5)
    whole = [recording([], rank=k + 1, wire=WIRE) for k in range(others)]
    recordings = [recording([], rank=0, wire=half), *whole]
    assert {one.rank for one in overlaps(recordings, 4)} == set(range(1, others + 1))
    found = facts(recordings, 4)
    assert found is not None and found.step_s == WIRE.period_s
    assert {one.rank for one in overlaps(recordings[:1], 4)} == {0}, "nobody disagrees"


def test_calls_without_ends_take_their_time_from_the_wire() -> None:
    calls = [(MB, 1.0 * k, None) for k in range(20)]
    found = facts([recording(calls, wire=WIRE)], 2)
    assert found is not None
    assert found.step_s == pytest.approx(1.0)
    assert found.comm_s == pytest.approx(0.4)
    assert (found.bytes_per_step, found.source) == (MB, "torch")
    assert facts([recording(calls)], 2) is None


def test_nothing_is_known_of_nothing() -> None:
    assert facts([], 2) is None
    assert facts([recording([])], 2) is None


def test_input_wait_is_the_longest_of_a_rank() -> None:
    rows = [operation("step", 0, [0.5] * 10), operation("input_wait", 0, [0.1] * 10)]
    late = [operation("step", 0, [0.5] * 10), operation("input_wait", 0, [0.2] * 10)]
    assert input_wait_s([recording([], rows=rows), recording([], rows=late)]) == pytest.approx(0.2)
    assert input_wait_s([recording([], rows=rows[:1])]) is None
