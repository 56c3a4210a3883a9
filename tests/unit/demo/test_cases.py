from dataclasses import replace

import pytest

from scheduler.model import Locality, RankOrder
from sitefile import load_site
from testbed.demo import PAPER_SITE, CaseArm, DemoError
from testbed.demo.cases import CASES, find_case, parse_arms, scattered
from testbed.demo.rule import CALIBRATION_BATCH

SITE = load_site(PAPER_SITE)


def test_case_a_interleaves_red_and_spreads_blue() -> None:
    places = scattered(SITE, CASES["a"])
    assert places.red == ("gpu0", "gpu2", "gpu1", "gpu3")
    assert places.blue == ("gpu4", "gpu5")
    assert [SITE.homes[e] for e in places.red] == ["as0", "as1", "as0", "as1"]


def test_case_b_scatters_both_jobs() -> None:
    places = scattered(SITE, CASES["b"])
    assert len(places.red) == len(places.blue) == 3
    assert set(places.red).isdisjoint(places.blue)
    for job in (places.red, places.blue):
        assert {SITE.homes[e] for e in job} == {"as0", "as1"}


def test_a_site_without_scatter_is_refused() -> None:
    homes = {"gpu0": "as0", "gpu1": "as0", "gpu2": "as0", "gpu3": "as0", "gpu4": "as1"}
    with pytest.raises(DemoError, match="nothing to regroup") as caught:
        scattered(replace(SITE, homes={**homes, "gpu5": "as1"}), CASES["a"])
    assert caught.value.code == "invalid"


def test_a_site_that_is_too_small_is_refused() -> None:
    with pytest.raises(DemoError, match="no room for job blue"):
        scattered(replace(SITE, endpoints=SITE.endpoints[:5]), CASES["a"])


def test_a_rank_has_the_batch_of_the_calibration_in_every_case() -> None:
    works = [work for case in CASES.values() for work in (case.red, case.blue)]
    assert {work.batch for work in works} == {CALIBRATION_BATCH}
    assert [work.global_batch for work in works] == [192, 96, 144, 144]


def test_arms_differ_in_locality_and_rank_order_only() -> None:
    assert {arm: (arm.locality, arm.rank_order) for arm in CaseArm} == {
        CaseArm.FRAGMENTED: (Locality.ANY, RankOrder.PLACED),
        CaseArm.REORDERED: (Locality.ANY, RankOrder.AGGREGATOR),
        CaseArm.REGROUPED: (Locality.REGROUP, RankOrder.AGGREGATOR),
        CaseArm.LIVE: (Locality.ANY, RankOrder.PLACED),
    }


def test_arms_run_in_a_fixed_order() -> None:
    assert parse_arms(None) == tuple(CaseArm)
    assert parse_arms(["live", "fragmented"]) == (CaseArm.FRAGMENTED, CaseArm.LIVE)


@pytest.mark.parametrize("names", [["fragmented", "lively"], []])
def test_unknown_or_no_arms_are_refused(names: list[str]) -> None:
    with pytest.raises(DemoError) as caught:
        parse_arms(names)
    assert caught.value.code == "invalid"
    assert "regrouped" in caught.value.hint


def test_unknown_case_is_refused() -> None:
    with pytest.raises(DemoError, match="unknown case 'c'"):
        find_case("c")
