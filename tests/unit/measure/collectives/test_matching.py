"""Which measured point a job's collective is compared to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measure.collectives.matching import LARGEST_RATIO, LEAST_BYTES, matching, ring_share
from scheduler.steptime.identify import GOODPUT

HOMES = st.lists(st.sampled_from(["as0", "as1", "as2"]), min_size=2, max_size=6)


def result(*points: tuple[list[str] | None, int, float | None]) -> dict[str, Any]:
    rows = [
        {
            "operation": "all_reduce",
            "size": size,
            "in_place": None if bus_bw is None else {"bus_bw": bus_bw},
            "out_of_place": None,
            **({} if homes is None else {"homes": homes}),
        }
        for homes, size, bus_bw in points
    ]
    return {"rows": rows}


@given(homes=HOMES, turn=st.integers(0, 5))
def test_a_ring_is_itself_wherever_it_begins(homes: list[str], turn: int) -> None:
    turned = homes[turn % len(homes) :] + homes[: turn % len(homes)]
    assert matching(result((homes, 100, 5.0)), "all_reduce", turned, 100) == (5.0, 100)


@given(homes=HOMES, other=HOMES)
def test_a_ring_that_loads_other_links_is_another(homes: list[str], other: list[str]) -> None:
    found = matching(result((other, 100, 5.0)), "all_reduce", homes, 100)
    if found is not None:
        assert len(homes) == len(other)
        inside = [
            sum(a == b for a, b in zip(h, h[1:] + h[:1], strict=True)) for h in (homes, other)
        ]
        assert inside[0] == inside[1]


def test_blocks_and_turns_differ() -> None:
    blocks, turns = ["as0", "as0", "as1", "as1"], ["as0", "as1", "as0", "as1"]
    assert matching(result((blocks, 100, 5.0)), "all_reduce", turns, 100) is None
    assert matching(result((turns, 100, 5.0)), "all_reduce", turns, 100) == (5.0, 100)


@given(size=st.integers(-1, 2**40), measured=st.integers(1, 2**40))
def test_a_size_far_off_says_nothing(size: int, measured: int) -> None:
    near = size > 0 and max(size, measured) / min(size, measured) <= LARGEST_RATIO
    found = matching(result((["as0"] * 2, measured, 5.0)), "all_reduce", ["as0"] * 2, size)
    assert found == ((5.0, measured) if near else None)


def test_missing_points_and_other_tools_rows_are_passed_by() -> None:
    rows = result((None, 100, 9.0), (["as0", "as0"], 100, None), (["as0", "as0"], 150, 5.0))
    assert matching(rows, "all_reduce", ["as0", "as0"], 100) == (5.0, 150)
    assert matching(rows, "broadcast", ["as0", "as0"], 100) is None


def shares(*points: tuple[str, int, Any]) -> dict[str, Any]:
    return {"rows": [{"operation": op, "size": n, "link_share": s} for op, n, s in points]}


def test_a_rings_share_is_that_of_the_largest_all_reduce() -> None:
    small, large = LEAST_BYTES, 4 * LEAST_BYTES
    told = shares(
        ("all_reduce", small, 0.9), ("all_reduce", large, 0.5), ("all_gather", large, 0.9)
    )
    assert ring_share(told) == pytest.approx(0.5 / GOODPUT)
    several = shares(("all_reduce", large, 0.5), ("all_reduce", large, 0.6))
    assert ring_share(several) == pytest.approx(0.6 / GOODPUT)
    assert ring_share(shares(("all_reduce", large, 1.2))) == 1.0


@pytest.mark.parametrize("share", [None, 0.0, 0.1, float("nan")])
def test_what_tells_nothing_of_links_has_no_share(share: float | None) -> None:
    assert ring_share(shares(("all_reduce", LEAST_BYTES, share))) is None
    assert ring_share(shares(("all_reduce", LEAST_BYTES - 1, 0.9))) is None
    assert ring_share({"rows": []}) is None
