"""Rings: crossings by rank order, and max-min fair rates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.steptime.rings import RingRates, links_of, max_min
from scheduler.steptime.routes import Routes


def test_crossings_by_rank_order() -> None:
    homes = {"a": "as0", "b": "as1", "c": "as0", "d": "as1"}
    routes = Routes({frozenset({"as0", "as1"}): 1})
    assert links_of(("a", "b", "c", "d"), homes, routes) == {("as0", "as1"): 2, ("as1", "as0"): 2}
    assert links_of(("a", "c", "b", "d"), homes, routes) == {("as0", "as1"): 1, ("as1", "as0"): 1}
    assert links_of(("a", "c"), homes, routes) == {}
    assert links_of(("a", "x"), {**homes, "x": None}, routes) is None
    assert links_of(("a", "b"), homes, Routes({})) is None


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
