"""Placements: how they are written, and where they put ranks on a site with several switches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measure.collectives.kind import COLLECTIVES
from measure.compare.kind import COMPARE
from measure.kinds import MeasuredEndpoint, MeasuredSite, SettingsError
from measure.placements import NAMED, place, read


def site(homes: Mapping[str, str], ports: Mapping[str, int]) -> MeasuredSite:
    places = [MeasuredEndpoint(endpoint, "srv0", home) for endpoint, home in homes.items()]
    links = {frozenset(pair): 1 for pair in combinations(sorted(ports), 2)}
    return MeasuredSite(places, 254e6, 114e6, links, dict(ports), emulated=True)


FOUR = site({f"gpu{i}": f"as{i % 2}" for i in range(4)}, {"as0": 4, "as1": 4})


def test_a_text_a_list_and_a_mapping_say_the_same() -> None:
    homes = {"homes": {"gpu3": "as1", "gpu0": "as0"}}
    assert read("local, homes=gpu3:as1+gpu0:as0", FOUR, ()) == ["local", homes]
    assert read(["local", homes, "local", homes], FOUR, ()) == ["local", homes]
    assert read(None, FOUR, ["remote"]) == ["remote"]


def test_homes_in_another_order_of_ranks_are_another_placement() -> None:
    turned = read("homes=gpu0:as0+gpu1:as1,homes=gpu1:as1+gpu0:as0", FOUR, ())
    assert [list(one["homes"]) for one in turned] == [["gpu0", "gpu1"], ["gpu1", "gpu0"]]


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "near", "homes=", "homes=gpu0", "homes=gpu9:as0", 7, {"homes": {}}),
        *([], ["local", 7], ["local"] * 17),
        *([{"homes": {}}], [{"homes": {"gpu0": 1}}], [{"homes": [1]}]),
    ],
)
def test_what_is_no_placement_is_refused_with_the_setting(wrong: object) -> None:
    with pytest.raises(SettingsError) as refused:
        read(wrong, FOUR, ())
    assert refused.value.setting == "placements"


def test_both_types_of_measurement_take_every_name() -> None:
    job = {"count": 4, "command": ["train"], "image": "trainer:1"}
    one = COLLECTIVES.settings({"placements": ",".join(NAMED)}, FOUR)
    other = COMPARE.settings({"placements": list(NAMED), "job": job}, FOUR)
    assert one["placements"] == other["placements"] == list(NAMED)


@given(
    ranks=st.integers(2, 8),
    at=st.lists(st.integers(0, 2), min_size=8, max_size=8),
    ports=st.lists(st.integers(0, 9), min_size=3, max_size=3),
    name=st.sampled_from(["local", "hybrid", "remote"]),
)
def test_names_keep_to_ports_and_to_their_meaning(
    ranks: int, at: list[int], ports: list[int], name: str
) -> None:
    free = {f"as{i}": ports[i] for i in range(3)}
    there = site({f"gpu{i}": f"as{home}" for i, home in enumerate(at)}, free)
    try:
        made = place(name, ranks, there)
    except SettingsError:
        enough = {"local": max(ports), "hybrid": 2 * sorted(ports)[1], "remote": sum(ports)}
        assert enough[name] < ranks + (name == "hybrid")
        return
    sizes = Counter(made.homes.values())
    assert len(set(made.order)) == len(made.order) == ranks == sum(sizes.values())
    assert all(count <= free[home] for home, count in sizes.items())
    match name:
        case "local":
            assert len(sizes) == 1 and made.crossings == 0
        case "hybrid":
            assert sorted(sizes.values()) == sorted([ranks // 2, ranks - ranks // 2])
            assert made.crossings == 2
        case _:
            assert len(sizes) == min(ranks, sum(count > 0 for count in ports))
