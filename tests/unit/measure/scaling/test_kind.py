"""The type ``scaling``: settings, jobs, and rows from lines that trainers wrote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measure.envelope import Body, Row
from measure.kinds import Line, MeasuredSite, MeasurementKind, RunEnd, SettingsError, Tabled
from measure.scaling.kind import SCALING
from measure.scaling.nets import count, resnet
from measure.scaling.steps import SKIPPED
from testbed.trainer import RingMember, parse_arguments
from tests.parts.measure.scaling import fabric, lines_of, options, usual


def body(site: MeasuredSite, chosen: Row, lines: Sequence[Line]) -> Body:
    ends = [RunEnd(True) for _ in SCALING.runs(chosen, site, 1)]
    return SCALING.body(chosen, site, 1, lines, ends)


def test_it_is_a_kind_with_a_table() -> None:
    kind: MeasurementKind = SCALING
    assert kind.name == "scaling"
    assert isinstance(SCALING, Tabled)


def test_runs_are_trainings_that_the_trainer_accepts() -> None:
    site = fabric()
    runs = SCALING.runs(SCALING.settings({}, site), site, 7)
    assert len(runs) == 9
    for run in runs:
        assert run.command[:3] == ("python3", "-m", "testbed.trainer")
        parsed = parse_arguments(list(run.command[3:]), RingMember(0, len(run.endpoints)))
        assert parsed.model.name == options(run)["--model"]
        assert parsed.steps == 40 + SKIPPED
        assert parsed.seed == 7
    assert list(runs[-1].endpoints) == ["gpu0", "gpu2", "gpu4", "gpu1"], "close ones first"
    assert all(run.image == "" and run.homes == {} for run in runs)


def test_quick_is_shorter_and_a_small_site_has_fewer_ranks() -> None:
    site = fabric()
    assert len(SCALING.runs(SCALING.settings({"quick": True}, site), site, 1)) == 6
    assert SCALING.settings({}, fabric(["as0", "as1", "as0"]))["ranks"] == [1, 2]


@pytest.mark.parametrize(
    ("given_", "setting"),
    [
        ({"models": "vgg"}, "models"),
        ({"x": 0}, "x"),
        ({"x": "1,two"}, "x"),
        ({"x": []}, "x"),
        ({"x": [True]}, "x"),
        ({"x": 300}, "x"),
        ({"batches": [7]}, "batches"),
        ({"ranks": [7]}, "ranks"),
        ({"steps": 10}, "steps"),
        ({"steps": [40, 50]}, "steps"),
        ({"quick": 1}, "quick"),
        ({"image": 3}, "image"),
        (
            {"x": list(range(1, 25)), "batches": [12, 24, 48], "ranks": [1, 2, 3]},
            "x",
        ),
    ],
)
def test_a_wrong_setting_is_named(given_: dict[str, Any], setting: str) -> None:
    with pytest.raises(SettingsError) as caught:
        SCALING.settings(given_, fabric())
    assert caught.value.setting == setting


def test_two_x_predict_the_others_exactly_on_a_machine_that_is_linear() -> None:
    site = fabric()
    chosen = SCALING.settings({"x": "1,2,4,8,16,32", "ranks": "1,2,4"}, site)
    made = body(site, chosen, lines_of(site, chosen))
    predicted = [row for row in made.rows if row["predicted_step_s"] is not None]
    assert len(predicted) == 12
    # Communication grows by the quarter between x = 1 and 32, which one rate covers.
    assert all(abs(row["error"]) < 0.02 for row in predicted)
    alone = [row for row in predicted if row["ranks"] == 1]
    assert all(abs(row["error"]) < 1e-9 for row in alone)
    assert made.fits[0]["flop_s"] == pytest.approx(1e-10)
    assert made.fits[0]["fixed_s"] == pytest.approx(1e-3)
    assert made.invalid_because == []


def test_figures_of_a_row() -> None:
    site = fabric()
    chosen = SCALING.settings({}, site)
    made = body(site, chosen, lines_of(site, chosen))
    rows = {(row["x"], row["ranks"]): row for row in made.rows}
    row, one = rows[16, 4], rows[16, 1]
    compute, comm = usual(16, 48, 4)
    assert row["step_s"] == pytest.approx(compute + comm), "the first steps do not count"
    assert row["exposed_s"] == pytest.approx(comm)
    assert row["speedup"] == pytest.approx(one["step_s"] / row["step_s"])
    assert row["efficiency"] == pytest.approx(row["speedup"] / 4)
    assert (one["speedup"], one["efficiency"]) == (1.0, 1.0)
    assert row["activations"] == count(resnet(16)).activations * 12
    assert row["intensity"] == pytest.approx(count(resnet(16)).intensity(12))
    assert row["gradient_bytes"] == 4 * row["parameters"]
    assert row["steps"] == 40


@given(st.floats(1e-12, 1e-9), st.floats(1e6, 1e9), st.sampled_from([12, 48, 96]))
def test_exposure_falls_with_intensity(flop_s: float, rate: float, batch: int) -> None:
    site = fabric()
    chosen = SCALING.settings({"batches": batch, "ranks": [2]}, site)

    def machine(x: int, batch: int, ranks: int) -> tuple[float, float]:
        counts = count(resnet(x))
        return 3 * counts.flops * batch / ranks * flop_s, 4 * counts.parameters / rate

    made = body(site, chosen, lines_of(site, chosen, machine))
    shares = [row["exposed_s"] / row["step_s"] for row in made.rows]
    assert shares == sorted(shares, reverse=True)
    assert made.summary["exposure_falls"] is True


def test_a_slow_rank_is_the_step_and_its_wait_is_not_communication() -> None:
    site = fabric()
    chosen = SCALING.settings({"ranks": [2], "x": [1]}, site)
    lines = []
    for one in lines_of(site, chosen):
        record = dict(one.record)
        if record["event"] == "step" and one.rank == 1:
            record |= {"step_s": 0.5, "compute_s": 0.4, "comm_s": 0.1}
        elif record["event"] == "step":
            record |= {"step_s": 0.5, "compute_s": 0.2, "comm_s": 0.3}
        lines.append(Line(one.run, one.rank, record))
    (row,) = body(site, chosen, lines).rows
    assert (row["step_s"], row["comm_s"]) == (pytest.approx(0.5), pytest.approx(0.1))
    assert row["compute_s"] == pytest.approx(0.3)


def test_a_run_that_failed_has_a_row_without_figures() -> None:
    site = fabric()
    chosen = SCALING.settings({"quick": True}, site)
    lines = [one for one in lines_of(site, chosen) if one.run != 2]
    ends = [RunEnd(number != 2, "out of memory") for number in range(6)]
    made = SCALING.body(chosen, site, 1, lines, ends)
    row = made.rows[2]
    assert (row["step_s"], row["steps"], row["reason"]) == (None, 0, "out of memory")
    assert made.invalid_because == ["fewer steps than asked: ResNet/16, batch 48, 1 ranks"]
    # Without a second x there is nothing to predict from, and without t_1 no speed-up.
    assert made.rows[1]["predicted_step_s"] is None
    assert made.rows[5]["speedup"] is None
    assert "out of memory" in SCALING.table({"rows": made.rows})


def test_nothing_at_all() -> None:
    site = fabric()
    chosen = SCALING.settings({}, site)
    made = SCALING.body(chosen, site, 1, [], [])
    assert all(row["step_s"] is None for row in made.rows)
    assert made.summary["exposure_falls"] is None
    SCALING.table({"rows": made.rows})


def test_progress_counts_runs() -> None:
    site = fabric()
    chosen = SCALING.settings({"quick": True}, site)
    lines = lines_of(site, chosen)
    assert SCALING.progress(chosen, site, []).done == 0
    middle = SCALING.progress(chosen, site, [one for one in lines if one.run < 3])
    assert (middle.done, middle.total) == (3, 6)
    assert middle.text == "ResNet/16, batch 48, 1 ranks"


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@given(
    st.lists(
        st.builds(
            Line,
            st.integers(-1, 7),
            st.integers(-1, 3),
            st.dictionaries(
                st.sampled_from(["event", "step", "step_s", "compute_s", "comm_s"]),
                st.just("step") | VALUES,
            ),
        ),
        max_size=30,
    ),
    st.booleans(),
)
def test_hostile_lines_do_no_harm(lines: list[Line], before: bool) -> None:
    site = fabric()
    chosen = SCALING.settings({"quick": True}, site)
    sound = lines_of(site, chosen)
    made = body(site, chosen, [*lines, *sound] if before else [*sound, *lines])
    json.dumps([*made.rows, *made.fits, made.summary], allow_nan=False)
    SCALING.progress(chosen, site, lines)
    SCALING.table({"rows": made.rows})
    json.dumps([*body(site, chosen, lines).rows], allow_nan=False)


@given(
    st.dictionaries(
        st.sampled_from(["x", "batches", "ranks", "steps", "quick", "image"]),
        VALUES | st.lists(VALUES, max_size=3),
    )
)
def test_any_settings_are_completed_or_refused(given_: dict[str, Any]) -> None:
    site = fabric()
    try:
        chosen = SCALING.settings(given_, site)
    except SettingsError:
        return
    again = json.loads(json.dumps(chosen))
    assert SCALING.settings(again, site) == again
