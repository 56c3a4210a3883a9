"""The type ``collectives``: settings, jobs, and rows from lines that jobs wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measure.collectives.definitions import CollectiveOperation, seconds_at
from measure.collectives.kind import COLLECTIVES
from measure.kinds import (
    TORCH_IMAGE,
    Importing,
    Line,
    MeasurementKind,
    RunEnd,
    SettingsError,
    Tabled,
)
from probe.collectives import read_plan
from tests.parts.measure.collectives import HOMES, body, fabric, lines_of, settings


def test_it_is_a_kind_with_imports_and_a_table() -> None:
    kind: MeasurementKind = COLLECTIVES
    assert kind.name == "collectives"
    assert isinstance(COLLECTIVES, Importing)
    assert isinstance(COLLECTIVES, Tabled)


def test_by_default_ranks_are_ordered_as_a_jobs_are() -> None:
    site = fabric()
    chosen = COLLECTIVES.settings({}, site)
    (run,) = COLLECTIVES.runs(chosen, site, 1)
    assert list(run.endpoints) == ["gpu0", "gpu2", "gpu1", "gpu3"]
    assert run.homes == {}
    assert run.image == TORCH_IMAGE
    assert run.env == {"PYTHONPATH": "/lightloom"}
    plan = read_plan(run.command[-1])
    assert {point.operation for point in plan.points[0]} == {"all_reduce"}
    assert [point.size for point in plan.points[0]] == [4**n * 1024 for n in range(1, 7)]
    assert (plan.iterations, plan.warm_up, plan.check) == (20, 5, True)


def test_placements_by_name() -> None:
    site = fabric()
    names = ["present", "reordered", "local", "hybrid", "remote"]
    runs = COLLECTIVES.runs(settings(site, placements=names), site, 1)
    present, reordered, local, hybrid, remote = runs
    assert list(present.endpoints) == list(HOMES)
    assert list(reordered.endpoints) == ["gpu0", "gpu2", "gpu1", "gpu3"]
    assert set(local.homes.values()) == {"as0"}
    # The run before has left gpu1 and gpu3 under as0: each says where its endpoints are to be.
    assert hybrid.homes == remote.homes == present.homes == reordered.homes == HOMES
    crossings = [row["crossings"] for row in body(site, settings(site, placements=names), []).rows]
    assert crossings[::2] == [4, 2, 0, 2, 4]
    rows = body(site, settings(site, placements=names), []).rows
    assert rows[0]["homes"] == ["as0", "as1", "as0", "as1"]
    assert rows[4]["homes"] == ["as0"] * 4


def test_light_stays_where_no_placement_moves_it() -> None:
    site = fabric()
    runs = COLLECTIVES.runs(settings(site, placements="present,hybrid,remote"), site, 1)
    assert [run.homes for run in runs] == [{}, {}, {}]


def test_a_run_that_was_elsewhere_makes_the_result_invalid() -> None:
    site = fabric()
    chosen = settings(site, placements="remote")
    (run,) = COLLECTIVES.runs(chosen, site, 1)
    lines = lines_of(site, chosen)
    right = body(site, chosen, lines, [RunEnd(True, homes={e: HOMES[e] for e in run.endpoints})])
    assert right.invalid_because == []
    gathered = dict.fromkeys(run.endpoints, "as0")
    found = body(site, chosen, lines, [RunEnd(True, homes=gathered)])
    assert found.invalid_because == ["endpoints were not where they should be: remote, 4 ranks"]
    assert found.rows[0]["homes"] == ["as0"] * 4


def test_numbers_of_ranks_and_explicit_homes() -> None:
    site = fabric()
    chosen = settings(
        site, ranks="2,3", placements=["present", {"homes": {"gpu3": "as0", "gpu0": "as0"}}]
    )
    runs = COLLECTIVES.runs(chosen, site, 1)
    assert [len(run.endpoints) for run in runs] == [2, 3, 2]
    assert list(runs[2].endpoints) == ["gpu3", "gpu0"]
    assert runs[2].homes == {"gpu3": "as0", "gpu0": "as0"}


@pytest.mark.parametrize(
    ("given_", "setting"),
    [
        ({"operation": ["all_reduce"]}, "operation"),
        ({"operations": ["all_to_all"]}, "operations"),
        ({"operations": []}, "operations"),
        ({"framework": "tensorflow", "operations": "reduce"}, "operations"),
        ({"framework": "jax"}, "framework"),
        ({"sizes": "1m..4k"}, "sizes"),
        ({"sizes": "4k..1m*1"}, "sizes"),
        ({"sizes": [2]}, "sizes"),
        ({"sizes": "4g"}, "sizes"),
        ({"sizes": True}, "sizes"),
        ({"sizes": [1.5]}, "sizes"),
        ({"sizes": 4096}, "sizes"),
        ({"iterations": 0}, "iterations"),
        ({"iterations": True}, "iterations"),
        ({"point_s": float("nan")}, "point_s"),
        ({"check": "yes"}, "check"),
        ({"ranks": 5}, "ranks"),
        ({"ranks": [1]}, "ranks"),
        ({"ranks": "two"}, "ranks"),
        ({"placements": ["near"]}, "placements"),
        ({"placements": [{"homes": {"gpu9": "as0"}}]}, "placements"),
        ({"placements": [{"homes": dict.fromkeys(HOMES, "as9")}]}, "placements"),
        ({"placements": []}, "placements"),
        ({"together": "half"}, "together"),
        ({"together": "mod0"}, "together"),
        ({"together": "mod4"}, "together"),
        ({"together": 2}, "together"),
        ({"framework": "tensorflow", "together": True}, "together"),
        ({"operations": "all_gather", "sizes": "32"}, "sizes"),
        ({"average": "median"}, "average"),
        ({"image": 1}, "image"),
    ],
)
def test_a_wrong_setting_is_named(given_: dict[str, Any], setting: str) -> None:
    with pytest.raises(SettingsError) as caught:
        COLLECTIVES.settings(given_, fabric())
    assert caught.value.setting == setting


@given(
    st.dictionaries(
        st.sampled_from(["operations", "sizes", "placements", "ranks", "together", "point_s"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
            max_leaves=5,
        ),
    )
)
def test_any_settings_are_completed_or_refused(given_: dict[str, Any]) -> None:
    site = fabric()
    try:
        chosen = COLLECTIVES.settings(given_, site)
    except SettingsError:
        return
    again = json.loads(json.dumps(chosen))
    assert COLLECTIVES.settings(again, site) == again
    assert COLLECTIVES.runs(again, site, 1) == COLLECTIVES.runs(chosen, site, 1)


def test_too_few_ports_or_endpoints_are_refused() -> None:
    with pytest.raises(SettingsError, match="free ports are as0 3, as1 3"):
        settings(fabric(free_ports={"as0": 3, "as1": 3}), placements="local")
    with pytest.raises(SettingsError, match="needs 2 endpoints"):
        settings(fabric({"gpu0": "as0"}))


def test_a_row_has_nccl_tests_fields_and_ours() -> None:
    site = fabric()
    chosen = settings(site)
    seconds = seconds_at(CollectiveOperation.ALL_REDUCE, 2**20, 14e6, 4)
    made = body(site, chosen, lines_of(site, chosen, seconds, {3: 1.2}))
    row = made.rows[1]
    assert row["out_of_place"] is None
    assert row["in_place"]["bus_bw"] == pytest.approx(14e6 / 1.05)
    assert row["in_place"]["nwrong"] == 0
    assert row["in_place"]["n"] == 2
    assert row["time_max_s"] == pytest.approx(1.2 * seconds)
    # The ring crosses once in each direction, at 15 MB/s.
    assert (row["crossings"], row["disturbed"]) == (2, False)
    assert row["link_share"] == pytest.approx(14 / 15 / 1.05)
    assert made.invalid_because == []
    assert "all_reduce" in COLLECTIVES.table({"rows": made.rows})


@pytest.mark.parametrize(("average", "factor"), [("min", 1.0), ("mean", 1.25), ("max", 2.0)])
def test_time_over_ranks_as_nccl_tests_averages(average: str, factor: float) -> None:
    site = fabric()
    chosen = settings(site, average=average)
    made = body(site, chosen, lines_of(site, chosen, 0.1, {0: 2.0}))
    assert made.rows[0]["in_place"]["time_s"] == pytest.approx(0.1 * factor)


def test_crossings_divide_the_link_between_aggregators() -> None:
    site = fabric()
    chosen = settings(site, placements="present")
    made = body(site, chosen, lines_of(site, chosen))
    row = made.rows[0]
    # Two edges cross in each direction: 7.5 MB/s each.
    assert row["link_share"] == pytest.approx(row["in_place"]["bus_bw"] / 7.5e6)


def test_parallel_links_carry_more() -> None:
    site = fabric(links={frozenset({"as0", "as1"}): 2})
    chosen = settings(site, placements="present")
    made = body(site, chosen, lines_of(site, chosen))
    assert made.rows[0]["link_share"] == pytest.approx(made.rows[0]["in_place"]["bus_bw"] / 15e6)


def test_two_groups_side_by_side_share_the_link() -> None:
    site = fabric()
    chosen = settings(site, placements="present", together="div2", operations="all_reduce,alltoall")
    (run,) = COLLECTIVES.runs(chosen, site, 1)
    assert json.loads(run.command[-1])["groups"] == [[0, 1], [2, 3]]
    made = body(site, chosen, lines_of(site, chosen))
    assert [row["group"] for row in made.rows] == [0] * 4 + [1] * 4
    first = made.rows[0]
    assert first["order"] == ["gpu0", "gpu1"]
    assert first["link_share"] == pytest.approx(first["in_place"]["bus_bw"] / 7.5e6)
    assert made.rows[2]["link_share"] is None, "an all-to-all is no ring"


def test_a_rank_alone_in_its_group_takes_no_part() -> None:
    site = fabric()
    chosen = settings(site, placements="present", together="div3")
    (run,) = COLLECTIVES.runs(chosen, site, 1)
    assert list(run.endpoints) == ["gpu0", "gpu1", "gpu2"]
    assert [row["ranks"] for row in body(site, chosen, lines_of(site, chosen)).rows] == [3, 3]


def test_a_sites_rates_may_be_unknown() -> None:
    site = fabric(access_bps=None, inter_aggregator_bps=None)
    chosen = settings(site)
    made = body(site, chosen, lines_of(site, chosen))
    assert made.rows[0]["link_share"] is None
    assert made.rows[0]["in_place"] is not None


def test_tensorflow_writes_into_another_array() -> None:
    site = fabric()
    chosen = settings(site, framework="tensorflow", operations="all_reduce,all_gather")
    (run,) = COLLECTIVES.runs(chosen, site, 1)
    assert (run.image, run.command[2]) == ("", "probe.collectives_tf")
    made = body(site, chosen, lines_of(site, chosen))
    assert all(row["in_place"] is None and row["out_of_place"] for row in made.rows)


def test_wrong_data_make_it_invalid() -> None:
    site = fabric()
    chosen = settings(site)
    lines = lines_of(site, chosen)
    lines[0] = replace(lines[0], record={**lines[0].record, "wrong": 3})
    made = body(site, chosen, lines)
    assert made.rows[0]["in_place"]["nwrong"] == 3
    assert made.invalid_because == ["data were wrong: 3 elements"]


def test_without_a_check_nothing_is_known_of_the_data() -> None:
    site = fabric()
    chosen = settings(site, check=False)
    made = body(site, chosen, lines_of(site, chosen))
    assert made.rows[0]["in_place"]["nwrong"] is None


def test_a_change_midway_is_told() -> None:
    site = fabric()
    chosen = settings(site)
    lines = lines_of(site, chosen)
    changed = [
        replace(one, record={**one.record, "times_s": [0.1, 0.2]}) if n % 2 == 0 else one
        for n, one in enumerate(lines)
    ]
    made = body(site, chosen, changed)
    assert [row["disturbed"] for row in made.rows] == [True, False]
    assert made.invalid_because == []


def test_a_silent_rank_leaves_a_row_without_figures() -> None:
    site = fabric()
    chosen = settings(site)
    lines = [one for one in lines_of(site, chosen) if one.rank != 2]
    made = body(site, chosen, lines)
    assert len(made.rows) == 2
    assert made.rows[0]["in_place"] is None
    assert made.rows[0]["time_max_s"] is None
    assert made.rows[0]["reason"] == "no line of rank 2"
    assert made.invalid_because == ["fewer repetitions than asked: 2 of 2 points"]
    ended = [RunEnd(False, "time limit")]
    assert body(site, chosen, lines, ended).rows[0]["reason"] == "time limit"
    assert "time limit" in COLLECTIVES.table({"rows": body(site, chosen, lines, ended).rows})


def test_what_a_framework_lacks_is_said_and_leaves_the_rest_valid() -> None:
    site = fabric()
    chosen = settings(site, operations="all_reduce,reduce_scatter")
    lines = []
    for one in lines_of(site, chosen):
        record = dict(one.record)
        if record["operation"] == "reduce_scatter":
            record = {k: v for k, v in record.items() if k not in ("times_s", "wrong")}
            record["reason"] = "torch 1.13: gloo does not support reduce_scatter"
        lines.append(replace(one, record=record))
    made = body(site, chosen, lines)
    assert made.invalid_because == []
    assert [bool(row["reason"]) for row in made.rows] == [False, False, True, True]


def test_the_homes_that_a_run_had_count() -> None:
    site = fabric()
    chosen = settings(site, placements="present")
    ended = [RunEnd(True, homes=dict.fromkeys(HOMES, "as1"))]
    made = body(site, chosen, lines_of(site, chosen), ended)
    assert made.rows[0]["crossings"] == 0
    dark = [RunEnd(True, homes={"gpu0": None})]
    assert body(site, chosen, lines_of(site, chosen), dark).rows[0]["link_share"] is None


def test_progress_counts_points_not_ranks() -> None:
    site = fabric()
    chosen = settings(site)
    lines = lines_of(site, chosen)
    assert COLLECTIVES.progress(chosen, site, []).done == 0
    assert COLLECTIVES.progress(chosen, site, lines[:1]).done == 1
    whole = COLLECTIVES.progress(chosen, site, [*lines, *lines])
    assert (whole.done, whole.total) == (2, 2)
    assert whole.text == "reordered, 4 ranks: all_reduce 1048576 B"


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
TIMES = st.lists(VALUES, max_size=4)


@given(
    st.lists(
        st.builds(
            Line,
            st.integers(-1, 2),
            st.integers(-1, 4),
            st.fixed_dictionaries(
                {
                    "probe": st.sampled_from(["collective", "start", "x"]),
                    "operation": st.sampled_from(["all_reduce"]) | VALUES,
                    "size": st.sampled_from([65536, 2**20]) | VALUES,
                    "count": st.sampled_from([16384, 2**18]) | VALUES,
                    "times_s": TIMES | VALUES,
                },
                optional={
                    "wrong": VALUES,
                    "iterations": VALUES,
                    "note": VALUES,
                    "reason": VALUES,
                    "framework": VALUES,
                    "version": VALUES,
                    "backend": VALUES,
                },
            ),
        ),
        max_size=30,
    ),
    st.booleans(),
)
def test_hostile_lines_do_no_harm(lines: list[Line], before: bool) -> None:
    site = fabric()
    chosen = settings(site)
    sound = lines_of(site, chosen)
    made = body(site, chosen, [*lines, *sound] if before else [*sound, *lines])
    json.dumps([*made.rows, made.summary], allow_nan=False)
    assert len(made.rows) == 2
    if not before:
        assert made.rows == body(site, chosen, sound).rows
    COLLECTIVES.progress(chosen, site, lines)
    COLLECTIVES.table({"rows": made.rows})


@given(st.permutations(range(8)))
def test_the_order_of_lines_does_not_matter(order: list[int]) -> None:
    site = fabric()
    chosen = settings(site)
    lines = lines_of(site, chosen, slow={1: 1.5})
    assert body(site, chosen, [lines[n] for n in order]).rows == body(site, chosen, lines).rows
