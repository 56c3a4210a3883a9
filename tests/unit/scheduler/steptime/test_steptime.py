"""The step-time model: published times, consistency, and valid intervals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.steptime.calibrate import Calibration
from scheduler.steptime.profile import PAPER_CORE_RATE, PAPER_PROFILE, StepProfile
from scheduler.steptime.rings import RingRates, links_of, max_min
from tests.unit.scheduler.steptime.fluid import Trainer, completion_s

SAMPLES = 1200
PAIR = (("as0", "as1"), ("as1", "as0"))


def paper_time(
    compute_s: float, ring_s: float, ratio: float, hide: float, *rings: tuple[str, int, int]
) -> float:
    """Return when the red job completes; rings are (name, ranks, crossings each way)."""
    profile = StepProfile(compute_s / SAMPLES, ring_s / SAMPLES, hide)
    trainers = [
        Trainer(name, profile, ranks, dict.fromkeys(PAIR, m) if m else {}, SAMPLES // ranks)
        for name, ranks, m in rings
    ]
    return completion_s(trainers, dict.fromkeys(PAIR, 1 / ratio), "red")


@pytest.mark.parametrize("fit", [(420, 151, 2.24, 0.5), (211, 153, 2.20, 0.0)])
@pytest.mark.parametrize(
    ("rings", "published"),
    [
        # Yan et al., OFC 2022: case a fragmented (ranks interleaved) and regrouped, then case b.
        ((("red", 4, 2), ("blue", 2, 1)), 407),
        ((("red", 4, 0), ("blue", 2, 0)), 109),
        ((("red", 3, 1), ("blue", 3, 1)), 368),
        ((("red", 3, 0), ("blue", 3, 0)), 140),
    ],
)
def test_the_papers_four_times(
    fit: tuple[float, float, float, float],
    rings: tuple[tuple[str, int, int], ...],
    published: float,
) -> None:
    assert paper_time(*fit, *rings) == pytest.approx(published, rel=0.02)


def test_reordering_alone_gains_about_half() -> None:
    found = paper_time(420, 151, 2.24, 0.5, ("red", 4, 1), ("blue", 2, 1))
    assert found == pytest.approx(257, rel=0.03)


def test_what_the_four_times_do_not_identify() -> None:
    """Overlap and compute are interchangeable while communication exceeds the overlap."""
    plain, hidden = StepProfile(211, 153, 0.0), StepProfile(211 / 0.67, 153, 0.33)
    for size, rate in ((4, 1 / 6.6), (3, 1 / 4.4)):
        assert hidden.step_s(size, rate) == pytest.approx(plain.step_s(size, rate))


def test_the_constants_are_the_fit() -> None:
    assert (PAPER_PROFILE.compute_s, PAPER_PROFILE.ring_s, PAPER_PROFILE.hide) == (420, 151, 0.5)
    assert pytest.approx(1 / 2.24) == PAPER_CORE_RATE


def test_step() -> None:
    profile = StepProfile(compute_s=1.0, ring_s=0.4, hide=0.5, hop_s=0.01)
    assert profile.step_s(1, 0.01) == 1.0
    assert profile.step_s(4, 1.0) == pytest.approx(0.5 + 0.06 + 0.6)
    assert profile.step_s(4, 0.5) == pytest.approx(0.5 + 0.06 + 1.2)
    with pytest.raises(ValueError, match="rate above 0"):
        profile.step_s(4, 0.0)


def test_a_step_of_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="never ends"):
        completion_s([Trainer("red", StepProfile(0, 0), 2, {}, 1)], {}, "red")


def test_crossings_by_rank_order() -> None:
    homes = {"a": "as0", "b": "as1", "c": "as0", "d": "as1"}
    assert links_of(("a", "b", "c", "d"), homes) == {("as0", "as1"): 2, ("as1", "as0"): 2}
    assert links_of(("a", "c", "b", "d"), homes) == {("as0", "as1"): 1, ("as1", "as0"): 1}
    assert not links_of(("a", "c"), homes)
    with pytest.raises(ValueError, match="dark"):
        links_of(("a", "x"), {**homes, "x": None})


loads = st.dictionaries(st.integers(0, 5), st.integers(1, 3), max_size=4)
systems = st.dictionaries(st.integers(0, 9), loads, max_size=10)
capacities = st.lists(st.floats(0.1, 4.0), min_size=6, max_size=6)


@given(systems, capacities)
def test_rates_are_max_min_fair(rings: dict[int, dict[int, int]], room: list[float]) -> None:
    capacity = dict(enumerate(room))
    rates = max_min(rings, capacity)
    used = {
        link: sum(load.get(link, 0) * rates[r] for r, load in rings.items()) for link in capacity
    }
    assert all(used[link] <= capacity[link] + 1e-9 for link in capacity)
    for ring, load in rings.items():
        # A rate below the cap has a full link on which no ring is faster.
        assert rates[ring] >= 1 - 1e-9 or any(
            used[link] >= capacity[link] - 1e-9
            and all(rates[o] <= rates[ring] + 1e-9 for o, other in rings.items() if link in other)
            for link in load
        )


@given(st.lists(st.tuples(st.integers(0, 9), st.none() | loads), max_size=25), capacities)
def test_incremental_rates_equal_a_new_solution(
    changes: list[tuple[int, dict[int, int] | None]], room: list[float]
) -> None:
    capacity = dict(enumerate(room))
    rates, present = RingRates(capacity), {}
    for ring, load in changes:
        before = dict(rates.rates)
        changed = rates.change({ring: load})
        if load is None:
            present.pop(ring, None)
        else:
            present[ring] = load
        assert rates.rates == pytest.approx(max_min(present, capacity))
        for name, rate in rates.rates.items():
            assert name in changed or before.get(name) == rate


def test_one_placement_gives_an_interval() -> None:
    seen = Calibration(4)
    seen.observe(1.0, 2.0)
    assert seen.unidentified == ("compute_s", "ring_s", "hide")
    assert seen.profile() is None
    slower, same = seen.predict(0.25), seen.predict(1.0)
    assert (slower.low, slower.high) == (2.0, 8.0)
    assert not slower.exact
    assert same.exact
    assert same.low == 2.0


@given(
    st.builds(
        StepProfile, st.floats(0.1, 10), st.floats(0, 10), st.sampled_from([0.0, 0.25, 0.5, 0.9])
    ),
    st.integers(2, 32),
    st.lists(st.floats(0.05, 1.0), min_size=1, max_size=3),
    st.floats(0.05, 1.0),
)
def test_the_truth_lies_in_every_interval(
    truth: StepProfile, size: int, rates: list[float], asked: float
) -> None:
    seen = Calibration(size)
    for rate in rates[:2]:
        seen.observe(rate, truth.step_s(size, rate))
    if seen.placements == 2 and abs(rates[0] - rates[1]) < 0.05 * rates[0]:
        return  # nearly the same placement: the fit is ill-conditioned by rounding
    found, real = seen.predict(asked), truth.step_s(size, asked)
    assert found.low <= real * (1 + 1e-6)
    assert found.high >= real * (1 - 1e-6)


def test_two_placements_give_the_profile() -> None:
    truth = StepProfile(1.0, 0.8, 0.5)
    seen = Calibration(4, hide=0.5)
    for rate in (1.0, 0.25, 1.0, 0.25):
        seen.observe(rate, truth.step_s(4, rate))
    assert seen.unidentified == ()
    found = seen.profile()
    assert found is not None
    assert found.compute_s == pytest.approx(1.0)
    assert found.ring_s == pytest.approx(0.8)
    assert seen.predict(0.5).exact
    assert seen.predict(0.5).low == pytest.approx(truth.step_s(4, 0.5))


def test_a_placement_that_hides_everything_shows_the_compute() -> None:
    truth = StepProfile(10.0, 1.0, 0.5)
    seen = Calibration(2, hide=0.5)
    for rate in (1.0, 0.1):
        seen.observe(rate, truth.step_s(2, rate))
    found = seen.profile()
    assert found is not None
    assert found.compute_s == pytest.approx(10.0)
    assert found.ring_s == pytest.approx(1.0)


def test_noise_averages_out() -> None:
    truth = StepProfile(1.0, 0.8, 0.0)
    seen = Calibration(4, hide=0.0)
    for i in range(40):
        for rate in (1.0, 0.25):
            seen.observe(rate, truth.step_s(4, rate) * (1.05 if i % 2 else 0.95))
    assert seen.predict(0.5).low == pytest.approx(truth.step_s(4, 0.5), rel=0.01)


def test_a_lone_rank_has_no_ring() -> None:
    seen = Calibration(1)
    seen.observe(1.0, 3.0)
    assert seen.predict(0.1).exact
    assert seen.unidentified == ("ring_s", "hide")


def test_invalid_values_are_rejected() -> None:
    with pytest.raises(ValueError, match="no step was measured"):
        Calibration(2).predict(1.0)
    with pytest.raises(ValueError, match="impossible"):
        Calibration(2).observe(0.0, 1.0)
    with pytest.raises(ValueError, match="at least 1"):
        Calibration(0)
