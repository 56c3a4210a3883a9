"""``whatif``, ``advise`` and ``get predictions``."""

from __future__ import annotations

import pytest

from console.cli.show.advice import gain, step, step_change
from controller.schema.insight.advice import PredictionView
from tests.parts.api.fake_service import FakeService
from tests.unit.console.cli.conftest import Run


def test_whatif_shows_now_and_then_and_what_is_open(run: Run, service: FakeService) -> None:
    name = next(iter(service.jobs))
    done = run("whatif", name, "--homes", "gpu0=as1")
    assert done.code == 0
    assert "0.8 s" in done.out and "0.4 … 0.5 s" in done.out
    assert "-50 … -38 %" in done.out
    assert "prediction p1" in done.out
    assert "open: hide" in done.out


def test_whatif_prints_one_document(run: Run, service: FakeService) -> None:
    name = next(iter(service.jobs))
    done = run("whatif", name, "--homes", "gpu0=as1", "-o", "json")
    assert done.document["step_then_s"] == {"low": 0.4, "high": 0.5}


@pytest.mark.parametrize("homes", ["gpu0", "gpu0=", "=as0", "gpu0=as0,gpu0=as1", ""])
def test_homes_that_cannot_be_read_are_a_usage_error(run: Run, homes: str) -> None:
    assert run("whatif", "red", "--homes", homes).code == 2


def test_an_unknown_job_is_not_found(run: Run) -> None:
    done = run("whatif", "nobody", "--homes", "gpu0=as1", "-o", "json")
    assert (done.code, done.error["code"]) == (5, "not_found")
    assert run("advise", "nobody").code == 5


def test_advise_names_limit_evidence_and_remedy(run: Run) -> None:
    done = run("advise")
    assert done.code == 0
    assert "red: scatter: it touches 2 aggregators, 1 would do (saves 50 % of a step)" in done.out
    assert "lightloom plan --job red" in done.out
    assert run("advise", "-o", "json").document["findings"][0]["limit"] == "scatter"


def test_get_predictions_has_predicted_measured_and_error(run: Run) -> None:
    done = run("get", "predictions")
    assert done.code == 0
    row = done.out.splitlines()[1]
    assert "p1" in row and "met" in row and "0.46 s" in row and "2.2 %" in row
    shown = run("describe", "prediction", "p1")
    assert shown.code == 0
    assert "as0:gpu0" in shown.out


def test_without_predictions_it_says_what_makes_one(
    run: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none(projects: object = None) -> list[PredictionView]:
        return []

    monkeypatch.setattr(service.queries, "predictions", none)
    done = run("get", "predictions")
    assert "there are no predictions" in done.err
    assert "lightloom whatif JOB" in done.err


def test_a_prediction_without_a_step_says_what_to_do(
    run: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def one(projects: object = None) -> list[PredictionView]:
        return [
            PredictionView(
                id="p9",
                job="red",
                cause="plan",
                made_at=1.0,
                homes={"gpu0": "as0"},
                step_s=None,
                basis=["links as measured", "nothing was measured of its steps: do this"],
                state="open",
            )
        ]

    monkeypatch.setattr(service.queries, "predictions", one)
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
