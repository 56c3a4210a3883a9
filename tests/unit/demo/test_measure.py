"""Tests every arm with an in-memory controller, and the resulting document, table and plots."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from sitefile import load_site
from testbed.demo import PAPER_SITE, CaseArm, DemoError, plots, render, report
from testbed.demo.api import Controller
from testbed.demo.cases import CASES, scattered
from testbed.demo.experiment import raw
from testbed.demo.jobs import DemoJobs
from testbed.demo.measure import CaseExperiment, CaseResult, run_arm
from testbed.demo.rule import TrainerCalibration, derive_rates
from testbed.demo.stage import write
from tests.unit.demo.fake import START, FakeController

SITE = load_site(PAPER_SITE)
CASE = CASES["a"]
STEPS = 60
RATES = derive_rates(TrainerCalibration(0.18, 4_088_680, 0.0, 0.18))
ARM_KEYS = {
    *("completion_s", "samples_per_s", "step_s_median", "exposed_comm_fraction", "utilisation"),
    *("final_loss", "container_restarts", "dark_time_s", "longest_gap_s"),
}


@pytest.fixture
def fake() -> FakeController:
    return FakeController(dict(SITE.homes))


@pytest.fixture
def experiment(fake: FakeController) -> Iterator[CaseExperiment]:
    with Controller("http://127.0.0.1:8470", fake.transport()) as controller:
        yield CaseExperiment(
            controller=controller,
            jobs=DemoJobs(controller),
            case=CASE,
            places=scattered(SITE, CASE),
            samples=STEPS * 192,
            image="ll-trainer:0",
            homes=SITE.homes,
            run_id="beef",
            progress=lambda line: None,
        )


def test_fragmented_arm(experiment: CaseExperiment, fake: FakeController) -> None:
    measured = run_arm(experiment, CaseArm.FRAGMENTED)
    blue, red = fake.submitted
    assert (blue["name"], red["name"]) == ("blue-a-fragmented-beef", "red-a-fragmented-beef")
    assert red["endpoints"] == ["gpu0", "gpu2", "gpu1", "gpu3"]
    assert (red["locality"], red["rank_order"]) == ("any", "placed")
    assert red["command"][-4:] == ["--samples", str(STEPS * 192), "--global-batch", "192"]
    assert measured.figures.keys() == ARM_KEYS
    assert measured.figures["completion_s"] == STEPS
    assert measured.figures["exposed_comm_fraction"] == 0.8
    assert measured.figures["utilisation"] == 0.5
    assert measured.figures["dark_time_s"] == 0.0
    assert measured.figures["longest_gap_s"] == 0.0
    assert measured.started_at == START
    assert fake.transactions == []
    assert [job["state"] for job in fake.jobs.values()] == ["cancelled", "completed"]


def test_homes_are_restored_between_arms(experiment: CaseExperiment, fake: FakeController) -> None:
    run_arm(experiment, CaseArm.REGROUPED)
    assert fake.homes != SITE.homes
    run_arm(experiment, CaseArm.REORDERED)
    assert fake.homes == SITE.homes
    plan = fake.transactions[0]
    assert plan["epoch"] == 7
    assert plan["homes_after"] == dict(SITE.homes)
    assert all(move["to"] == SITE.homes[move["endpoint"]] for move in plan["moves"])
    assert fake.submitted[-1]["rank_order"] == "aggregator"


def test_live_arm_regroups_after_a_third(experiment: CaseExperiment, fake: FakeController) -> None:
    measured = run_arm(experiment, CaseArm.LIVE)
    assert [plan["id"] for plan in fake.transactions] == ["p1"]
    assert measured.regroup == (START + 20.4, START + 20.9)
    assert measured.figures["dark_time_s"] == 0.21
    assert measured.figures["container_restarts"] == 0
    assert measured.figures["longest_gap_s"] == pytest.approx(0.75)


def test_blue_that_fails_ends_the_arm(experiment: CaseExperiment, fake: FakeController) -> None:
    fake.fail_blue = True
    with pytest.raises(
        DemoError, match="blue-a-fragmented-beef is failed: rank 0 exited"
    ) as caught:
        run_arm(experiment, CaseArm.FRAGMENTED)
    assert caught.value.object == "job/blue-a-fragmented-beef"
    experiment.jobs.end_all()


def test_remaining_jobs_are_cancelled(experiment: CaseExperiment, fake: FakeController) -> None:
    run_arm(experiment, CaseArm.FRAGMENTED)
    fake.jobs["red-a-fragmented-beef"]["state"] = "running"
    experiment.jobs._open.append("red-a-fragmented-beef")
    experiment.jobs.end_all()
    assert fake.jobs["red-a-fragmented-beef"]["state"] == "cancelled"
    assert experiment.jobs._open == []


def test_a_refusal_of_the_controller_keeps_code_and_hint(experiment: CaseExperiment) -> None:
    with pytest.raises(DemoError, match="no /jobs/green") as caught:
        experiment.jobs.view("green")
    assert (caught.value.code, caught.value.hint) == ("not_found", "look")


@pytest.fixture
def arms(experiment: CaseExperiment) -> list[CaseResult]:
    return [run_arm(experiment, arm) for arm in CaseArm]


def test_document_table_and_files(arms: list[CaseResult], tmp_path: Path) -> None:
    files = plots.draw("a", arms, tmp_path)
    result = report.document(
        CASE,
        "paper",
        RATES,
        {measured.arm: measured.figures for measured in arms},
        plots=files,
        emulated=["gpu0"],
    )
    report.check(result)
    assert result.keys() == {
        *("case", "site", "rates", "arms", "reduction", "paper", "plots", "emulated"),
    }
    assert result["rates"].keys() == {"access_bps", "inter_aggregator_bps", "rule"}
    assert list(result["arms"]) == ["fragmented", "reordered", "regrouped", "live"]
    assert result["reduction"] == {"reordered": 0.0, "regrouped": 0.75, "live": 0.4875}
    assert result["paper"] == {"fragmented_s": 407.0, "regrouped_s": 109.0, "reduction": 0.732}

    names = ["demo-a-fragmented.png", "demo-a-reordered.png", "demo-a-regrouped.png"]
    assert [Path(file).name for file in files] == [*names, "demo-a-live.png", "demo-a.png"]
    for file in files:
        assert Path(file).read_bytes().startswith(b"\x89PNG")

    write(tmp_path, "a", result, {one.arm.value: raw(one) for one in arms})
    assert json.loads((tmp_path / "demo-a.json").read_text()) == result
    written = json.loads((tmp_path / "demo-a-raw.json").read_text())
    assert len(written["live"]["steps"]) == STEPS

    console = Console(width=200)
    with console.capture() as shown:
        console.print(render(result))
    text = shown.get()
    for expected in ("75.0 %", "73.2 %", "407", "250.6 Mbit/s", "0.001", "demo-a.png"):
        assert expected in text


def test_without_the_fragmented_arm_there_is_no_reduction(arms: list[CaseResult]) -> None:
    figures = {measured.arm: measured.figures for measured in arms[1:2]}
    result = report.document(CASE, "paper", RATES, figures, plots=[], emulated=[])
    assert result["reduction"] == {}
    report.check(result)
    render(result)


@pytest.mark.parametrize(
    ("arm", "change", "message"),
    [
        (CaseArm.LIVE, {"final_loss": 0.376}, "trained differently"),
        (CaseArm.LIVE, {"container_restarts": 1}, "restarted"),
        (CaseArm.FRAGMENTED, {"completion_s": 59.0}, "less than 60 s"),
    ],
)
def test_invalid_figures_are_an_error(
    arms: list[CaseResult], arm: CaseArm, change: dict[str, float], message: str
) -> None:
    figures = {measured.arm: measured.figures for measured in arms}
    figures[arm] = {**figures[arm], **change}
    result = report.document(CASE, "paper", RATES, figures, plots=[], emulated=[])
    with pytest.raises(DemoError, match=message) as caught:
        report.check(result)
    assert caught.value.code == "failed"
    assert caught.value.object == f"arm/{arm}"


def test_unknown_utilisation_is_reported_as_unknown(arms: list[CaseResult]) -> None:
    figures = {CaseArm.FRAGMENTED: {**arms[0].figures, "utilisation": None}}
    render(report.document(CASE, "paper", RATES, figures, plots=[], emulated=[]))
