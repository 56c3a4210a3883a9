"""One placement identifies a job: exact where nothing is open, else an interval with the truth."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.steptime.facts import StepFacts
from scheduler.steptime.identify import MeasuredStep, identify
from scheduler.steptime.profile import StepProfile
from scheduler.steptime.road import Road

ACCESS_BPS = 100e6
RATES = st.floats(0.05, 1.0)
SIZES = st.integers(2, 16)
HIDES = st.floats(0.0, 1.0)


def road(rate: float, hop_s: float = 0.0) -> Road:
    return Road(rate, rate, hop_s)


def facts_of(
    profile: StepProfile, size: int, rate: float, *, spread: float = 0.0, calls: float = 1.0
) -> StepFacts:
    """Return what a recorder sees of a profile's step."""
    step = profile.step_s(size, rate)
    return StepFacts(
        ranks=size,
        step_s=step,
        comm_s=profile.latency_s(size) + profile.wire_s(size) / rate,
        exposed_s=step - profile.compute_s,
        bytes_per_step=profile.ring_s * ACCESS_BPS / 8,
        calls_per_step=calls,
        ring_rate=rate,
        spread=spread,
        source="nccl",
        steps=100,
    )


@given(
    size=SIZES,
    here=RATES,
    there=RATES,
    hide=HIDES,
    compute=st.floats(0.01, 10),
    ring=st.floats(0.001, 10),
    hop=st.sampled_from([0, 1e-4]),
)
def test_one_placement_recovers_a_profile_or_bounds_it(
    *, size: int, here: float, there: float, hide: float, compute: float, ring: float, hop: float
) -> None:
    truth = StepProfile(compute, ring, hide, hop)
    found = identify([MeasuredStep(facts_of(truth, size, here), road(here, hop))], ACCESS_BPS)
    step = found.predict(road(there, hop)).step_s
    expected = truth.step_s(size, there)
    assert step.low <= expected * 1.011 and step.high >= expected * 0.989
    exposed = truth.step_s(size, here) - compute
    if exposed > 0.011 * truth.step_s(size, here):
        assert step.low == pytest.approx(expected, rel=1e-6)
        assert step.high == pytest.approx(expected, rel=1e-6)


@given(SIZES, RATES, HIDES, st.floats(0.01, 10), st.floats(0.001, 10))
def test_the_placement_that_was_measured_is_predicted_as_measured(
    size: int, here: float, hide: float, compute: float, ring: float
) -> None:
    facts = facts_of(StepProfile(compute, ring, hide), size, here, calls=4.0)
    step = identify([MeasuredStep(facts, road(here))], ACCESS_BPS).predict(road(here)).step_s
    assert step.low == pytest.approx(facts.step_s, rel=0.011)
    assert step.high == pytest.approx(facts.step_s, rel=0.011)


@given(
    size=SIZES,
    here=RATES,
    there=RATES,
    hide=HIDES,
    compute=st.floats(0.01, 10),
    ring=st.floats(0.001, 10),
    noise=st.floats(-0.05, 0.05),
)
def test_noise_within_the_spread_stays_inside_the_interval(
    *, size: int, here: float, there: float, hide: float, compute: float, ring: float, noise: float
) -> None:
    truth = StepProfile(compute, ring, hide)
    told = facts_of(truth, size, here, spread=0.06)
    off = 1.0 + noise
    facts = StepFacts(
        ranks=size,
        step_s=told.step_s * off,
        comm_s=told.comm_s * off,
        exposed_s=told.exposed_s * off,
        bytes_per_step=told.bytes_per_step,
        calls_per_step=1.0,
        spread=0.06,
        steps=100,
    )
    step = identify([MeasuredStep(facts, road(here))]).predict(road(there)).step_s
    assert step.low <= truth.step_s(size, there) * 1.011
    assert step.high >= truth.step_s(size, there) * 0.989


@given(
    size=SIZES,
    here=RATES,
    slow=RATES,
    fast=RATES,
    hide=HIDES,
    calls=st.floats(1, 8),
    wait=st.floats(0, 0.4),
)
def test_a_faster_ring_never_makes_a_step_longer(
    *, size: int, here: float, slow: float, fast: float, hide: float, calls: float, wait: float
) -> None:
    told = facts_of(StepProfile(0.3, 0.2, hide), size, here, calls=calls)
    facts = StepFacts(
        ranks=size,
        step_s=told.step_s + wait,
        comm_s=told.comm_s,
        exposed_s=told.exposed_s,
        bytes_per_step=told.bytes_per_step,
        calls_per_step=calls,
        wait_s=wait,
        steps=50,
    )
    found = identify([MeasuredStep(facts, road(here))], ACCESS_BPS)
    slow, fast = min(slow, fast), max(slow, fast)
    before, after = found.predict(road(slow)).step_s, found.predict(road(fast)).step_s
    assert after.low <= before.low * (1 + 1e-9) and after.high <= before.high * (1 + 1e-9)


def test_time_that_no_rate_shortens_is_an_open_question_with_a_name() -> None:
    told = facts_of(StepProfile(0.1, 0.1, 0.0, dispatch_s=0.1), 4, 0.5)
    found = identify([MeasuredStep(told, road(0.5))], ACCESS_BPS).predict(road(1.0))
    truth = StepProfile(0.1, 0.1, 0.0, dispatch_s=0.1).step_s(4, 1.0)
    assert found.step_s.low < truth < found.step_s.high * (1 + 1e-9)
    assert any(reason.startswith("dispatch_s") for reason in found.unidentified)


def test_a_second_placement_answers_what_the_first_left_open() -> None:
    truth = StepProfile(0.1, 0.1, 0.0, dispatch_s=0.1)
    seen = [MeasuredStep(facts_of(truth, 4, rate), road(rate)) for rate in (0.25, 0.5)]
    one = identify(seen[1:], ACCESS_BPS).predict(road(1.0)).step_s
    two = identify(seen, ACCESS_BPS).predict(road(1.0)).step_s
    assert two.high - two.low < 0.5 * (one.high - one.low)
    assert two.low * 0.98 <= truth.step_s(4, 1.0) <= two.high * 1.02


def test_gaps_between_collectives_are_not_guessed() -> None:
    """Four buckets, each 10 ms apart and 5 ms long: only the last is exposed."""
    facts = StepFacts(
        ranks=2,
        step_s=0.105,
        comm_s=0.020,
        exposed_s=0.005,
        bytes_per_step=1e5,
        calls_per_step=4,
        steps=100,
    )
    found = identify([MeasuredStep(facts, road(1.0))]).predict(road(0.5))
    assert found.step_s.low <= 0.110 * 1.001
    assert found.step_s.high >= 0.120
    assert any(reason.startswith("hide") for reason in found.unidentified)


def test_a_step_that_waits_for_its_batch_gains_nothing_for_certain_from_a_faster_ring() -> None:
    facts = StepFacts(
        ranks=4,
        step_s=1.0,
        comm_s=0.4,
        exposed_s=0.4,
        bytes_per_step=0,
        calls_per_step=1,
        wait_s=0.3,
        steps=100,
    )
    found = identify([MeasuredStep(facts, road(0.5))]).predict(road(1.0))
    assert found.step_s.low == pytest.approx(0.8)  # the loader adds its time
    assert found.step_s.high == pytest.approx(1.0)  # the loader is the limit
    assert any(reason.startswith("wait_s") for reason in found.unidentified)


def test_other_jobs_that_may_pause_widen_the_prediction() -> None:
    told = facts_of(StepProfile(0.1, 0.4, 0.0), 2, 1.0)
    found = identify([MeasuredStep(told, road(1.0))], ACCESS_BPS).predict(Road(0.25, 0.5))
    assert found.step_s.low == pytest.approx(0.1 + 0.4 / 0.5)
    assert found.step_s.high == pytest.approx(0.1 + 0.4 / 0.25)
    assert any(reason.startswith("rate") for reason in found.unidentified)


def test_a_lone_rank_is_its_compute() -> None:
    facts = StepFacts(
        ranks=1, step_s=0.5, comm_s=0, exposed_s=0, bytes_per_step=0, calls_per_step=0, steps=10
    )
    found = identify([MeasuredStep(facts, road(1.0))], ACCESS_BPS).predict(road(0.2))
    assert found.step_s.low == found.step_s.high == pytest.approx(0.5)
    assert found.unidentified == ()


@pytest.mark.parametrize(
    "changes", [{"step_s": 0.0}, {"ranks": 0}, {"comm_s": -1.0}, {"exposed_s": float("nan")}]
)
def test_impossible_facts_are_refused(changes: dict[str, float]) -> None:
    given_ = {
        "ranks": 2,
        "step_s": 1.0,
        "comm_s": 0.1,
        "exposed_s": 0.1,
        "bytes_per_step": 1.0,
        "calls_per_step": 1.0,
    }
    facts = StepFacts(**(given_ | changes))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a step has"):
        identify([MeasuredStep(facts, road(1.0))])


def test_a_placement_beside_others_does_not_exclude_what_its_bounds_allow() -> None:
    truth = StepProfile(0.2, 0.4, 0.0)

    def told(rate: float) -> StepFacts:
        step = truth.step_s(4, rate)
        comm = step - truth.compute_s
        return StepFacts(
            ranks=4,
            step_s=step,
            comm_s=comm,
            exposed_s=comm,
            bytes_per_step=0,
            calls_per_step=1,
            steps=100,
        )

    guessed = MeasuredStep(
        told(0.4), Road(0.3, 0.3, 0.0, (0.25, 0.5))
    )  # it was faster than simulated
    latest = MeasuredStep(told(1.0), Road(1.0, 1.0))
    assert not identify([guessed, latest]).disagree
    assert identify([replace(guessed, road=Road(0.3, 0.3)), latest]).disagree
