"""``whatif``, ``advise`` and ``get predictions``."""

from __future__ import annotations

import pytest

from console.cli.show.advice import gain, step, step_change
from controller.schema.insight.advice import (
    AdviceView,
    FindingView,
    PredictionView,
    RangeView,
    WhatIfView,
)
from tests.parts.api.desks import answer
from tests.parts.controller.rack import Rack
from tests.unit.console.cli.conftest import Run

BASIS = ["100 recorded steps (torch) at 1 placement"]


@pytest.fixture
def advised(rack: Rack) -> Rack:
    """A controller that has measured the steps of red for long."""
    predicted = PredictionView(
        id="p1",
        job="red",
        cause="whatif",
        made_at=1.0,
        homes={"gpu0": "as0"},
        step_s=RangeView(low=0.4, high=0.5),
        step_before_s=0.8,
        measured_s=0.46,
        measured_at=60.0,
        error=abs(0.45 - 0.46) / 0.46,
        basis=BASIS,
        state="met",
    )
    finding = FindingView(
        job="red",
        limit="scatter",
        text="it touches 2 aggregators, 1 would do",
        evidence=["a compact step takes 50 % of the present one"],
        gain=RangeView(low=0.5, high=0.5),
        remedy="bring its endpoints together",
        command="lightloom plan --job red",
    )
    homes = dict(rack.see.homes())
    then = WhatIfView(
        job="red",
        prediction="p1",
        homes_before=homes,
        homes_after=homes | {"gpu0": "as1"},
        span_before=2,
        span_after=1,
        step_now_s=0.8,
        step_then_s=RangeView(low=0.4, high=0.5),
        change=RangeView(low=-0.5, high=-0.375),
        ring_rate_before=0.22,
        ring_rate_after=1.0,
        possible=True,
        basis=BASIS,
        unidentified=["hide: how much communication fits behind its compute"],
    )
    advice = AdviceView(job=None, limit=None, findings=[finding])
    answer(rack.desks.advice, whatif=then, predictions=[predicted], advise=advice)
    return rack


def test_whatif_shows_now_and_then_and_what_is_open(run: Run, advised: Rack) -> None:
    done = run("whatif", "red", "--homes", "gpu0=as1")
    assert done.code == 0
    assert "0.8 s" in done.out and "0.4 … 0.5 s" in done.out
    assert "-50 … -38 %" in done.out
    assert "prediction p1" in done.out
    assert "open: hide" in done.out


def test_whatif_prints_one_document(run: Run, advised: Rack) -> None:
    done = run("whatif", "red", "--homes", "gpu0=as1", "-o", "json")
    assert done.document["step_then_s"] == {"low": 0.4, "high": 0.5}


@pytest.mark.parametrize("homes", ["gpu0", "gpu0=", "=as0", "gpu0=as0,gpu0=as1", ""])
def test_homes_that_cannot_be_read_are_a_usage_error(run: Run, homes: str) -> None:
    assert run("whatif", "red", "--homes", homes).code == 2


def test_an_unknown_job_is_not_found(run: Run) -> None:
    done = run("whatif", "nobody", "--homes", "gpu0=as1", "-o", "json")
    assert (done.code, done.error["code"]) == (5, "not_found")
    assert run("advise", "nobody").code == 5


def test_advise_names_limit_evidence_and_remedy(run: Run, advised: Rack) -> None:
    done = run("advise")
    assert done.code == 0
    assert "red: scatter: it touches 2 aggregators, 1 would do (saves 50 % of a step)" in done.out
    assert "lightloom plan --job red" in done.out
    assert run("advise", "-o", "json").document["findings"][0]["limit"] == "scatter"


def test_get_predictions_has_predicted_measured_and_error(run: Run, advised: Rack) -> None:
    done = run("get", "predictions")
    assert done.code == 0
    row = done.out.splitlines()[1]
    assert "p1" in row and "met" in row and "0.46 s" in row and "2.2 %" in row
    shown = run("describe", "prediction", "p1")
    assert shown.code == 0
    assert "as0:gpu0" in shown.out


def test_without_predictions_it_says_what_makes_one(run: Run) -> None:
    done = run("get", "predictions")
    assert "no predictions" in done.err
    assert "lightloom whatif JOB" in done.err


def test_a_prediction_without_a_step_says_what_to_do(run: Run, rack: Rack) -> None:
    one = PredictionView(
        id="p9",
        job="red",
        cause="plan",
        made_at=1.0,
        homes={"gpu0": "as0"},
        step_s=None,
        basis=["links as measured", "nothing was measured of its steps: do this"],
        state="open",
    )
    answer(rack.desks.advice, predictions=[one])
    assert "p9: nothing was measured of its steps: do this" in run("get", "predictions").err


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (None, "-"),
        (0.4021, "0.402 s"),
        ({"low": 0.402, "high": 0.4022}, "0.402 s"),
        ({"low": 0.58, "high": 0.61}, "0.58 … 0.61 s"),
    ],
)
def test_steps_show_intervals_as_such(given: object, shown: str) -> None:
    assert step(given) == shown  # type: ignore[arg-type]


def test_changes_and_gains_read_as_sentences() -> None:
    assert step_change({"low": 0.488, "high": 0.492}) == "+49 %"
    assert gain({"low": 0.0, "high": 0.4}) == "saves up to 40 % of a step"
    assert gain({"low": 0.2, "high": 0.4}) == "saves 20 to 40 % of a step"
