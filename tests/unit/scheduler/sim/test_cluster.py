"""The replayed cluster counts places and excess spans as the fabric index does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model import Move
from scheduler.placement.index import DARK
from scheduler.placement.selection import least_span
from scheduler.sim.cluster import ReplaySettings, empty_cluster
from tests.unit.scheduler.sim.small import NoSlowdown, site


@given(
    dark=st.sets(st.integers(0, 15)),
    members=st.sets(st.integers(0, 15), min_size=1),
    switches=st.sampled_from([1, 2]),
)
def test_excess_agrees_with_the_index(dark: set[int], members: set[int], switches: int) -> None:
    cluster = empty_cluster(site(4, 4, switches), ReplaySettings(), NoSlowdown())
    index = cluster.index
    names = [a.name for a in index.site.aggregators]
    index.rehome(Move(index.names[e], names[index.home[e]], None) for e in sorted(dark))
    places = cluster.places([index.names[e] for e in members])
    assert places.get(DARK, 0) == len(dark & members)
    assert sum(places.values()) == len(members)
    least = least_span(index, cluster.pool, len(members))
    expected = max(index.span_of(sorted(members)) - least, 0)
    assert cluster.excess_at(places) == expected


@pytest.mark.parametrize(
    ("places", "excess"), [({0: 4}, 0), ({0: 2, 1: 2}, 1), ({DARK: 2, 0: 2}, 2), ({DARK: 1}, 0)]
)
def test_excess_by_hand(places: dict[int, int], excess: int) -> None:
    cluster = empty_cluster(site(4, 4), ReplaySettings(), NoSlowdown())
    assert cluster.excess_at(places) == excess
