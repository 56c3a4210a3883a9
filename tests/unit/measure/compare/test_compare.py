"""A comparison: which runs it needs, what it predicts, and what it recommends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from measure.compare.kind import COMPARE, placements_of
from measure.compare.table import access_of, recommend, road_of
from measure.envelope import Body
from measure.kinds import (
    Continuing,
    Line,
    MeasuredEndpoint,
    MeasuredSite,
    MeasurementKind,
    RunEnd,
    SettingsError,
    Tabled,
)
from scheduler.steptime.calibrate import PredictionInterval
from scheduler.steptime.identify import GOODPUT
from scheduler.steptime.profile import StepProfile
from tests.parts.measure.compare import JOB, Site

ACCESS_BPS, BETWEEN_BPS = 254e6, 114e6


def fabric(
    count: int = 8, aggregators: Sequence[str] = ("as0", "as1"), free: int = 5
) -> MeasuredSite:
    homes = [aggregators[i % len(aggregators)] for i in range(count)]
    return MeasuredSite(
        places=[MeasuredEndpoint(f"gpu{i}", f"s{i // 2}", home) for i, home in enumerate(homes)],
        access_bps=ACCESS_BPS,
        inter_aggregator_bps=BETWEEN_BPS,
        links={frozenset(pair): 1 for pair in combinations(aggregators, 2)},
        free_ports=dict.fromkeys(aggregators, free),
        emulated=True,
    )


def by_name(body: Body) -> dict[str, Mapping[str, Any]]:
    return {str(row["placement"]): row for row in body.rows}


def test_it_is_a_kind_that_goes_on_and_draws_tables() -> None:
    kind: MeasurementKind = COMPARE
    assert isinstance(kind, Continuing)
    assert isinstance(kind, Tabled)
    assert kind.name == "compare"


def test_one_run_identifies_the_job_and_the_recommended_one_proves_it() -> None:
    site = Site(fabric(), StepProfile(0.1, 0.1, 0.0))
    body = site.measure({})
    assert [run.label for run in site.runs] == ["remote", "local"]
    rows = by_name(body)
    assert body.summary["recommended"] == "local"
    assert body.summary["open"] is False
    assert rows["local"]["error"] == pytest.approx(0.0, abs=1e-6)
    assert rows["hybrid"]["measured_step_s"] is None
    hybrid = rows["hybrid"]["predicted_step_s"]
    assert hybrid["low"] == pytest.approx(hybrid["high"])
    assert rows["remote"]["change"] > rows["hybrid"]["change"] > rows["local"]["change"] == 0
    assert not body.invalid_because
    text = COMPARE.table({"rows": body.rows, "summary": body.summary})
    assert "recommended: local, because local is the fastest" in text


def test_without_parts_of_a_step_two_placements_are_run() -> None:
    site = Site(fabric(), StepProfile(0.1, 0.1, 0.0), parts=False)
    body = site.measure({})
    assert [run.label for run in site.runs] == ["remote", "local"]
    hybrid = by_name(body)["hybrid"]
    assert hybrid["predicted_step_s"]["high"] >= hybrid["predicted_step_s"]["low"]
    assert body.summary["recommended"] == "local"


def test_a_recording_serves_where_the_program_prints_only_steps() -> None:
    site = Site(fabric(), StepProfile(0.1, 0.1, 0.0), parts=False, facts=True)
    body = site.measure({})
    assert by_name(body)["local"]["error"] == pytest.approx(0.0, abs=1e-6)
    assert {run.record for run in site.runs} == {"counts"}


def test_run_measures_all_in_turns() -> None:
    site = Site(fabric(), StepProfile(0.1, 0.1, 0.0))
    body = site.measure({"mode": "run", "rounds": 2})
    assert [run.label for run in site.runs] == ["local", "hybrid", "remote"] * 2
    assert all(row["measured_step_s"]["n"] == 80 for row in body.rows)
    assert all(row["error"] == pytest.approx(0.0, abs=1e-6) for row in body.rows)


def test_predict_uses_an_earlier_comparison_and_runs_nothing() -> None:
    first = Site(fabric(), StepProfile(0.1, 0.1, 0.0)).measure({})
    site = Site(fabric(), StepProfile(0.1, 0.1, 0.0))
    body = site.measure({"mode": "predict", "known": first.summary["known"]})
    assert site.runs == []
    assert body.summary["recommended"] == "local"
    with pytest.raises(SettingsError, match="nothing was measured"):
        site.measure({"mode": "predict"})


def test_a_job_that_computes_only_is_placed_where_it_leaves_most_room() -> None:
    site = Site(fabric(8, free=5), StepProfile(1.0, 0.001, 0.0))
    body = site.measure({})
    chosen = by_name(body)[str(body.summary["recommended"])]
    assert chosen["leaves"] == max(row["leaves"] for row in body.rows)
    assert all(row["within"] for row in body.rows)


def test_a_ring_in_another_order_is_another_placement() -> None:
    there = fabric()
    site = Site(there, StepProfile(0.1, 0.1, 0.0))
    body = site.measure({"placements": "present,reordered", "mode": "run"})
    rows = by_name(body)
    assert rows["present"]["homes"] == rows["reordered"]["homes"]
    assert rows["reordered"]["crossings"] < rows["present"]["crossings"]
    assert body.summary["recommended"] == "reordered"


def test_aggregators_without_a_way_between_them_are_named() -> None:
    apart = replace(fabric(), links={})
    with pytest.raises(SettingsError, match="no cables connect the aggregators of remote"):
        COMPARE.settings({"job": JOB, "placements": "local,remote"}, apart)


def test_explicit_homes_and_two_more_aggregators() -> None:
    there = fabric(8, ("as0", "as1", "as2", "as3"), 4)
    homes = "homes=gpu0:as3+gpu1:as3+gpu2:as3+gpu3:as3"
    body = Site(there, StepProfile(0.1, 0.1, 0.0)).measure({"placements": ["remote", homes]})
    rows = list(body.rows)
    assert [row["span"] for row in rows] == [4, 1]
    assert body.summary["plan"]["homes"] == dict.fromkeys(("gpu0", "gpu1", "gpu2", "gpu3"), "as3")


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"job": {"count": 9}}, "job"),
        ({"job": {"command": ["x"]}}, "job"),
        ({"job": JOB | {"env": {"TOKEN": {"secret": "t"}}}}, "job"),
        ({"placements": "near"}, "placements"),
        ({"placements": []}, "placements"),
        ({"placements": "homes=gpu0:as0"}, "placements"),
        ({"placements": "homes=gpu0:as0+gpu1:as0+gpu2:as0+gpu9:as0"}, "placements"),
        ({"within": -1}, "within"),
        ({"steps": True}, "steps"),
        ({"mode": "guess"}, "mode"),
        ({"colour": 1}, "colour"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, Any], setting: str) -> None:
    with pytest.raises(SettingsError) as caught:
        COMPARE.settings({"job": JOB, **changes}, fabric())
    assert caught.value.setting == setting


JUNK = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@settings(max_examples=60)
@given(
    st.lists(
        st.builds(
            Line,
            st.integers(-1, 3),
            st.integers(-1, 5),
            st.dictionaries(
                st.sampled_from(["event", "step_s", "comm_s", "compute_s", "gradient_bytes"]),
                st.just("step") | JUNK,
            ),
        ),
        max_size=30,
    )
)
def test_lines_of_a_job_that_lies_never_break_it(lines: list[Line]) -> None:
    complete = COMPARE.settings({"job": JOB}, fabric())
    run = COMPARE.runs(complete, fabric(), 1)[0]
    ends = [RunEnd(True, homes={e: run.homes[e] for e in run.endpoints})]
    COMPARE.progress(complete, fabric(), lines)
    COMPARE.more(complete, fabric(), 1, lines, ends)
    body = COMPARE.body(complete, fabric(), 1, lines, ends)
    COMPARE.table({"rows": body.rows, "summary": body.summary})


def test_a_run_that_never_started_is_said() -> None:
    complete = COMPARE.settings({"job": JOB}, fabric())
    body = COMPARE.body(complete, fabric(), 1, [], [RunEnd(False, "no image")])
    assert body.invalid_because == ["no step was measured: no image"]
    assert body.summary["recommended"] is None


@given(
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.tuples(st.floats(0.1, 2), st.floats(0, 0.2), st.integers(0, 4), st.integers(0, 4)),
        min_size=1,
    )
)
def test_recommendations_do_not_depend_on_the_order(
    found: dict[str, tuple[float, float, int, int]],
) -> None:
    def chosen(order: Sequence[str]) -> object:
        steps = {n: PredictionInterval(found[n][0], found[n][0] + found[n][1]) for n in order}
        left = {n: found[n][2] for n in order}
        return recommend(steps, left, {n: found[n][3] for n in order}, 0.05)

    orders = list(permutations(found))
    some = orders[:: max(1, len(orders) // 10)]
    assert len({repr(chosen(order)) for order in some}) == 1


def test_a_recommendation_is_open_when_another_may_be_better() -> None:
    left, moves = {"a": 0, "b": 0}, {"a": 0, "b": 0}
    sure = recommend(
        {"a": PredictionInterval(1, 1), "b": PredictionInterval(2, 2)}, left, moves, 0.05
    )
    doubt = recommend(
        {"a": PredictionInterval(1, 1.5), "b": PredictionInterval(1.2, 2)}, left, moves, 0.05
    )
    assert sure and doubt
    assert (sure.name, sure.open) == ("a", False)
    assert (doubt.name, doubt.open) == ("a", True)
    assert recommend({}, {}, {}, 0.05) is None


def test_measured_links_replace_the_stated_rates() -> None:
    stated = fabric()
    fits = {"same aggregator": (1e-4, 25e6), "as0-as1": (5e-4, 5e6)}
    (remote,) = placements_of({"job": JOB, "placements": ["remote"]}, stated)
    before, after = (road_of(remote, one) for one in (stated, replace(stated, fits=fits)))
    assert before and after
    assert before.low == pytest.approx(BETWEEN_BPS / ACCESS_BPS / 2)
    assert after.low == pytest.approx(5 / 25 / 2) and after.hop_s == pytest.approx(5e-4)
    assert access_of(stated) == ACCESS_BPS
    assert access_of(replace(stated, fits=fits)) == pytest.approx(8 * 25e6 / GOODPUT)
