"""Ring order, crossings and the rank numbers of the frameworks."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import ring

HOMES = {"a": "x", "b": "y", "c": "x", "d": "y", "e": "z"}


def test_groups_in_order_of_first_appearance() -> None:
    assert ring.order(("b", "a", "c", "d"), HOMES) == ("b", "d", "a", "c")


def test_an_ordered_ring_stays_as_it_is() -> None:
    assert ring.order(("b", "d", "c", "a", "e"), HOMES) == ("b", "d", "c", "a", "e")


def test_crossings_count_the_closing_edge() -> None:
    assert ring.crossings(("a", "b", "c", "d"), HOMES) == 4
    assert ring.crossings(("a", "c", "b", "d"), HOMES) == 2
    assert ring.crossings(("a", "c"), HOMES) == 0
    assert ring.crossings(("a",), HOMES) == 0
    assert ring.crossings((), HOMES) == 0


def test_dark_endpoints_cross_on_both_sides() -> None:
    assert ring.crossings(("a", "c", "nowhere"), HOMES) == 2
    assert ring.crossings(("dark1", "dark2"), {}) == 2


@given(st.lists(st.sampled_from("xyz"), max_size=6))
def test_no_order_crosses_less(places: list[str]) -> None:
    homes: dict[str, str | None] = {f"e{i}": place for i, place in enumerate(places)}
    ordered = ring.order(tuple(homes), homes)
    assert sorted(ordered) == sorted(homes)
    fewest = min(ring.crossings(p, homes) for p in permutations(homes))
    assert ring.crossings(ordered, homes) == fewest
    spans = len(set(places))
    assert fewest == (spans if spans > 1 else 0)


@given(st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=8, unique=True))
def test_every_framework_numbers_the_ring_alike(members: list[str]) -> None:
    places = ring.exported(members)
    assert [place.endpoint for place in places] == members
    size = len(members)
    for rank, place in enumerate(places):
        assert place.tf_index == place.torch_rank == place.nccl_rank == rank
        assert places[place.nccl_next].nccl_previous == rank
        assert place.nccl_next == (rank + 1) % size


def test_exported_ring_crosses_as_rarely_as_its_order() -> None:
    homes = {"a": "as0", "b": "as1", "c": "as0", "d": "as1"}
    best = ring.order(["a", "b", "c", "d"], homes)
    places = ring.exported(best)
    edges = [(p.endpoint, places[p.nccl_next].endpoint) for p in places]
    crossing = sum(homes[one] != homes[other] for one, other in edges)
    assert crossing == ring.crossings(best, homes) == 2
    with pytest.raises(ValueError, match="twice"):
        ring.exported(["a", "a"])
