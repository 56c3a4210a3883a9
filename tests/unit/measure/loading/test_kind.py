from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measure.envelope import Body
from measure.kinds import (
    Line,
    MeasuredEndpoint,
    MeasuredSite,
    MeasurementKind,
    RunEnd,
    SettingsError,
    Tabled,
)
from measure.loading.kind import INPUT
from scheduler.steptime.facts import StepFacts
from tests.parts.measure.loading import STARVED, turn, turns

FABRIC = MeasuredSite(
    [MeasuredEndpoint("gpu0", "s0", "as0"), MeasuredEndpoint("gpu1", "s1", "as0")]
)
FED = {"loader": 400.0, "model": 200.0, "both": 199.0}


def body(lines: list[Line], ends: list[RunEnd] | None = None, **more: Any) -> Body:
    settings = INPUT.settings({"volume": "results", "blocks": 2, **more}, FABRIC)
    return INPUT.body(settings, FABRIC, 1, lines, ends or [RunEnd(completed=True)] * 4)


def test_it_is_a_kind() -> None:
    kind: MeasurementKind = INPUT
    assert isinstance(kind, Tabled)


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ({}, "volume"),
        ({"volume": "results", "loader": "dali"}, "loader"),
        ({"volume": "results", "data": "1m", "batch": 100}, "data"),
        ({"volume": "results", "step_ms": 0}, "step_ms"),
        ({"volume": "results", "prefetch": -1}, "prefetch"),
        ({"volume": "results", "nope": 1}, "nope"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, Any], setting: str) -> None:
    with pytest.raises(SettingsError) as refused:
        INPUT.settings(given, FABRIC)
    assert refused.value.setting == setting


def test_settings_survive_json_and_themselves() -> None:
    settings = INPUT.settings({"volume": "results", "io_limits": "5M,50M"}, FABRIC)
    assert INPUT.settings(json.loads(json.dumps(settings)), FABRIC) == settings


def test_samples_are_whole_blocks() -> None:
    assert INPUT.settings({"volume": "v", "sample": 5000}, FABRIC)["sample"] == 8192


def test_a_run_per_memory_and_disk() -> None:
    settings = INPUT.settings(
        {"volume": "v", "io_limits": "5M,50M", "memory_limits": "1g,0", "ranks": 2}, FABRIC
    )
    runs = INPUT.runs(settings, FABRIC, 1)
    assert [(run.memory_bytes, run.io_bps) for run in runs] == [
        (2**30, 5_000_000),
        (2**30, 50_000_000),
        (None, 5_000_000),
        (None, 50_000_000),
    ]
    assert {run.endpoints for run in runs} == {("gpu0", "gpu1")}


def test_more_ranks_than_endpoints_are_refused() -> None:
    settings = INPUT.settings({"volume": "v", "ranks": 3}, FABRIC)
    with pytest.raises(SettingsError, match="3 are asked for, 2 endpoints are idle"):
        INPUT.runs(settings, FABRIC, 1)


def test_the_loaders_framework_chooses_the_image() -> None:
    images = {}
    for loader in ("builtin", "torch", "tf"):
        settings = INPUT.settings({"volume": "v", "loader": loader}, FABRIC)
        images[loader] = INPUT.runs(settings, FABRIC, 1)[0].image
    assert images == {"builtin": "ll-probe:latest", "torch": "ll-torch:latest", "tf": ""}


def test_a_starved_training_is_limited_by_its_input() -> None:
    result = body(turns(STARVED))
    row = result.rows[0]
    assert result.invalid_because == []
    assert (row["limit"], row["certain"]) == ("input", True)
    assert row["ceiling_samples_s"] == 40
    assert row["to_ceiling"] == pytest.approx(0.975)
    assert (row["wait_share"], row["au"]) == (pytest.approx(0.2), pytest.approx(0.8))
    assert row["reading_share"] == pytest.approx(0.75)
    assert row["cached_share"] == 0
    assert "input" in INPUT.table({"rows": result.rows})


def test_a_fed_training_is_limited_by_its_model_or_its_network() -> None:
    assert body(turns(FED)).rows[0]["limit"] == "compute"
    facts = StepFacts(
        ranks=2, step_s=1.0, comm_s=0.8, exposed_s=0.7, bytes_per_step=1.0, calls_per_step=1.0
    )
    end = RunEnd(completed=True, facts=facts)
    assert body(turns(FED), [end]).rows[0]["limit"] == "network"


def test_ranks_step_together_so_the_slowest_rules() -> None:
    slow = {name: rate / 2 for name, rate in FED.items()}
    row = body([*turns(FED), *turns(slow, rank=1)], ranks=2).rows[0]
    assert row["model_samples_s"] == 200
    assert row["together_samples_s"] == pytest.approx(199)


def test_a_silent_rank_leaves_no_verdict() -> None:
    result = body(turns(FED), [RunEnd(completed=False, reason="rank 1 was lost")], ranks=2)
    assert result.rows[0]["limit"] is None
    assert result.rows[0]["ceiling_samples_s"] is None
    assert "no limit: rank 1 was lost" in result.invalid_because


def test_memory_that_answered_makes_it_invalid() -> None:
    lines = turns(STARVED, block_bytes=0)
    assert body(lines).rows[0]["cached_share"] == 1
    assert body(lines).invalid_because == ["no limit: memory answered 100%"]
    assert body(lines, cache="use").invalid_because == []


def test_a_volume_without_direct_reads_is_said() -> None:
    data = Line(0, 0, {"probe": "data", "samples": 10, "direct": False})
    assert "allows no direct I/O" in body([data, *turns(STARVED)]).invalid_because[0]


def test_a_refusal_is_the_reason() -> None:
    refused = {"probe": "refused", "reason": "tmpfs has no block device", "hint": "choose another"}
    result = body([Line(0, 0, refused)])
    assert result.rows[0]["reason"] == "tmpfs has no block device (choose another)"
    assert result.invalid_because == ["no limit: tmpfs has no block device (choose another)"]


def test_fewer_blocks_are_said() -> None:
    assert body(turns(FED, blocks=1)).invalid_because == ["no limit: 1 of 2 blocks"]


def test_the_table_crosses_memory_and_disk() -> None:
    lines = [line for run in range(4) for line in turns(STARVED, run=run)]
    result = body(lines, io_limits="5M,50M", memory_limits="1g,0")
    text = INPUT.table({"rows": result.rows}).splitlines()
    assert text[-3].split() == ["memory", "5", "MB/s", "50", "MB/s"]
    assert text[-2].split() == ["1", "GiB", "39.0", "39.0"]


VALUE = (
    st.none()
    | st.booleans()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text(max_size=3)
    | st.lists(st.integers(), max_size=2)
)


@given(
    st.lists(
        st.tuples(
            st.integers(-1, 2),
            st.integers(-1, 2),
            st.fixed_dictionaries(
                {"probe": st.sampled_from(["phase", "device", "data", "refused", "error"])},
                optional={
                    **dict.fromkeys(turn("loader", 0, 1.0).keys() - {"probe"}, VALUE),
                    "phase": st.sampled_from(["loader", "model", "both", "deeper", "x"]),
                    "samples": st.integers(1, 10),
                    "seconds": st.floats(1e-9, 1e9),
                    "number": VALUE,
                },
            ),
        ),
        max_size=8,
    )
)
def test_hostile_lines_break_nothing(written: list[tuple[int, int, dict[str, Any]]]) -> None:
    result = body([Line(*one) for one in written], io_limits="5M", ranks=2)
    assert len(result.rows) == 1
    json.dumps([result.rows, result.anomalies, result.summary], allow_nan=False)
    INPUT.table({"rows": result.rows})
