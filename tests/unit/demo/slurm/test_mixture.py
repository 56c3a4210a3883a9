"""The mixture, what each arm submits, and the figures from what jobs print."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from rich.console import Console

from testbed.demo.errors import DemoError
from testbed.demo.slurm import plots, report
from testbed.demo.slurm.measure import MixtureResult
from testbed.demo.slurm.mixture import (
    MixtureArm,
    MixtureJob,
    MixturePlan,
    command,
    least_span,
    mixture,
    parse_arms,
)
from testbed.demo.slurm.outputs import EndedJob, began, ended, figures, local_share, trained
from testbed.trainer import RingMember, parse_arguments

PORTS = {"as0": 4, "as1": 4}
WORK = MixtureJob(3, 0.0, 2, 30)
END = (
    '{"event": "end", "rank": 0, "completion_s": 1.5, "samples_s": 2.0, "final_loss": 0.5,'
    ' "accuracy": 0.9, "step_s_median": 0.25, "exposed_comm_fraction": 0.5}'
)
OUTPUT = f"begin 100.5\n0: {END}\nsome library's word\n1: {END}\nend 0 140.5\n"
APART = {"gpu0": "as0", "gpu2": "as1"}
TOGETHER = {"gpu0": "as0", "gpu2": "as0"}


def done(**given: object) -> EndedJob:
    values = {
        "work": WORK,
        "submitted_at": 90.0,
        "began_at": 100.0,
        "ended_at": 140.0,
        "endpoints": ("gpu0", "gpu2"),
        "least_span": 1,
        "final_loss": 0.5,
        "step_s": 0.25,
    }
    return EndedJob(**{**values, **given})  # type: ignore[arg-type]


def test_a_seed_makes_the_same_mixture_for_all_arms() -> None:
    plan = MixturePlan()
    jobs = mixture(plan)
    assert (len(jobs), jobs[0].at_s) == (20, 0.0)
    assert jobs == mixture(plan)
    assert jobs != mixture(MixturePlan(seed=2))
    assert {work.ranks for work in jobs} <= set(range(1, 7))
    assert [work.at_s for work in jobs] == sorted(work.at_s for work in jobs)
    with pytest.raises(DemoError, match="needs jobs"):
        MixturePlan(jobs=0).check()


@pytest.mark.parametrize(("ranks", "span"), [(1, 1), (4, 1), (5, 2), (8, 2)])
def test_the_fewest_aggregators_of_a_job(ranks: int, span: int) -> None:
    assert least_span(ranks, PORTS) == span


@pytest.mark.parametrize("arm", MixtureArm)
def test_every_arm_submits_the_same_training(arm: MixtureArm) -> None:
    words = command(WORK, MixturePlan(), arm, 1)
    assert ("--switches=1" in words) is (arm is MixtureArm.SWITCHES)
    assert not [word for word in words if word.startswith("--comment")]
    train = shlex.split(words[-1].split(";")[1])
    options = parse_arguments(train[train.index("testbed.trainer") + 1 :], RingMember(0, 2))
    assert (options.steps, options.global_batch, options.seed) == (30, 16, 4)


def test_arms_are_chosen_by_name() -> None:
    assert parse_arms(None) == tuple(MixtureArm)
    assert parse_arms(["lightloom", "tree"]) == (MixtureArm.TREE, MixtureArm.LIGHTLOOM)
    for wrong in (["light"], []):
        with pytest.raises(DemoError, match="arm"):
            parse_arms(wrong)


def test_a_jobs_output_says_when_it_ran_and_what_it_trained() -> None:
    assert (began(OUTPUT), ended(OUTPUT)) == (100.5, (0, 140.5))
    assert (began(""), ended("begin 1.0\n")) == (None, None)
    assert trained(WORK, OUTPUT).ends[1].final_loss == 0.5


@pytest.mark.parametrize("text", [OUTPUT.replace("end 0", "end 1"), OUTPUT.replace("1: ", "x ")])
def test_a_training_that_failed_ends_the_demo(text: str) -> None:
    with pytest.raises(DemoError, match="of its 2 ranks"):
        trained(WORK, text)


def test_locality_is_weighted_with_gpus_and_time() -> None:
    moved = [(0.0, APART), (110.0, TOGETHER)]
    assert local_share([done()], moved) == 0.75
    assert local_share([done(least_span=2)], moved) == 1.0
    assert local_share([done(work=MixtureJob(1, 0.0, 1, 30))], moved) is None
    later = done(work=MixtureJob(4, 0.0, 6, 30), began_at=140.0, ended_at=150.0)
    assert local_share([done(), later], [(0.0, APART), (140.0, TOGETHER)]) == round(60 / 140, 4)


def test_the_result_shows_all_arms(tmp_path: Path) -> None:
    timeline = ((0.0, APART), (110.0, TOGETHER))
    arms = [
        MixtureResult(a, figures([done()], timeline, 1, 2), (done(),), timeline) for a in MixtureArm
    ]
    files = plots.draw(arms, tmp_path)
    assert Path(files[0]).stat().st_size > 10_000
    result = report.document("paper", MixturePlan(), arms, plots=files, emulated=["GPUs"])
    report.check(result)
    assert result["arms"]["tree"]["makespan_s"] == 50.0
    assert result["arms"]["tree"]["wait_s_mean"] == 10.0
    console = Console(width=160, record=True)
    console.print(report.render(result))
    assert "lightloom" in console.export_text()
    result["arms"]["tree"]["losses"]["mix-3"] = 0.6
    with pytest.raises(DemoError, match="in another arm"):
        report.check(result)
