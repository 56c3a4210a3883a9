"""Roads: other rings, the time they send, and measured links."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.steptime.profile import StepProfile
from scheduler.steptime.road import LinkModel, Road, Roads, class_of
from scheduler.steptime.sites import SharedLinks

PAIR = frozenset(("x", "y"))
LINKS = SharedLinks(100e6, 50e6, {PAIR: 1})
HOMES = {"a": "x", "b": "y", "c": "x", "d": "y", "e": "x", "f": "x"}
RINGS = {"red": ("a", "b"), "blue": ("c", "d"), "far": ("e", "f")}


def test_a_ring_that_is_alone_has_one_rate() -> None:
    road = Roads({"red": RINGS["red"]}, HOMES, LINKS).to("red")
    assert road == Road(0.5, 0.5)


def test_rings_that_share_no_link_do_not_matter() -> None:
    road = Roads(RINGS, HOMES, LINKS).to("far")
    assert road == Road(1.0, 1.0)


def test_a_neighbour_of_unknown_habits_makes_a_range() -> None:
    road = Roads(RINGS, HOMES, LINKS).to("red")
    assert road == Road(0.25, 0.5)
    assert not road.steady


profiles = st.builds(
    StepProfile, st.floats(1e-3, 1), st.floats(1e-4, 1), st.floats(0, 1), dispatch_s=st.floats(0, 1)
)


@given(profiles, profiles)
def test_phases_of_known_neighbours_give_one_rate(red: StepProfile, blue: StepProfile) -> None:
    road = Roads(RINGS, HOMES, LINKS, profiles={"red": red, "blue": blue}).to("red")
    assert road is not None
    assert 0.25 <= road.low <= road.high <= 0.5
    assert road.bounds is None or road.bounds == (pytest.approx(0.25), pytest.approx(0.5))


def test_a_neighbour_that_hardly_sends_hardly_matters() -> None:
    red = StepProfile(0.1, 0.1, 0.0)
    for quiet, rate in ((1e-6, 0.5), (1.0, 0.25)):
        blue = StepProfile(0.1 * (1 - quiet) + 1e-9, 0.1 * quiet, 0.0)
        road = Roads(RINGS, HOMES, LINKS, profiles={"red": red, "blue": blue}).to("red")
        assert road is not None and road.steady
        assert road.low == pytest.approx(rate, rel=0.15)


def test_two_equal_jobs_end_up_sending_in_turns_less_than_all_the_time() -> None:
    equal = StepProfile(0.3, 0.1, 0.0)
    road = Roads(RINGS, HOMES, LINKS, profiles={"red": equal, "blue": equal}).to("red")
    assert road is not None and 0.25 <= road.low < 0.5


def test_a_job_whose_steps_are_not_known_leaves_the_range() -> None:
    red = StepProfile(0.1, 0.1, 0.0)
    for profiles_ in ({"red": red}, {"blue": red}, {}):
        road = Roads(RINGS, HOMES, LINKS, profiles=profiles_).to("red")
        assert road == Road(0.25, 0.5)


def test_many_neighbours_are_not_simulated_and_make_a_range() -> None:
    rings = {f"j{i}": (f"l{i}", f"r{i}") for i in range(40)}
    homes = {f"{s}{i}": "x" if s == "l" else "y" for i in range(40) for s in "lr"}
    profiles = dict.fromkeys(rings, StepProfile(0.1, 0.1, 0.0))
    road = Roads(rings, homes, LINKS, profiles=profiles).to("j0")
    assert road is not None
    assert (road.low, road.high) == (pytest.approx(0.5 / 40), pytest.approx(0.5))


def test_a_dark_member_has_no_road_and_no_share() -> None:
    roads = Roads(RINGS, {**HOMES, "b": None}, LINKS)
    assert roads.to("red") is None
    assert "red" not in roads.steady
    assert roads.to("blue") == Road(0.5, 0.5)


def test_measured_links_replace_the_site_files_and_add_latency() -> None:
    model = LinkModel({"same aggregator": (1e-4, 12e6), class_of("y", "x"): (5e-4, 3e6)})
    roads = Roads({"red": RINGS["red"]}, HOMES, LINKS, model=model)
    road = roads.to("red")
    assert road == Road(pytest.approx(0.25), pytest.approx(0.25), 5e-4)
    assert roads.access_bps == roads.ring_bps == pytest.approx(96e6)
    assert roads.measured
    slow = replace(model, ring_share=0.75)
    there = Roads({"red": RINGS["red"]}, HOMES, LINKS, model=slow)
    assert there.ring_bps == pytest.approx(72e6)
    assert there.to("red") == road, "a ring that is slow is so on all links"


def test_a_flow_that_the_access_link_limits_says_nothing_of_the_uplink() -> None:
    model = LinkModel({"same aggregator": (0, 12e6), "x-y": (0, 11.9e6)})
    fast = SharedLinks(100e6, 400e6, {PAIR: 2})
    assert model.adjusted(fast).measured == {}
