"""What each arm submits, and what the result says about unequal arms."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from controller.schema.jobs import read_job
from testbed.demo.errors import DemoError
from testbed.demo.spare import plots, report
from testbed.demo.spare.arms import LOCAL_BYTES, SpareArm, SparePlan, parse_arms, request
from testbed.demo.spare.measure import SpareResult
from testbed.demo.spare.trace import figures, read
from testbed.trainer import RingMember, parse_arguments
from tests.unit.demo.spare.traces import AFTER, BEFORE, LOST_AT, line

PLAN = SparePlan()
RECOVERY = {
    "how": "swap",
    "why": "",
    "swaps": {"gpu3": "gpu4"},
    "detect_s": 0.5,
    "light_s": 0.2,
    "import_s": None,
    "total_s": 19.5,
    "own_s": 2.1,
}


@pytest.mark.parametrize("arm", SpareArm)
def test_every_arm_is_a_valid_job_of_the_same_training(
    arm: SpareArm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("testbed.demo.spare.arms.MOUNT", str(tmp_path))
    body = request(arm, PLAN, name=f"{arm}-1f2e", image="x")
    job = read_job(body)
    assert (job.checkpoint is not None, job.spares) == (
        arm is SpareArm.SPARE,
        int(arm is SpareArm.SPARE),
    )
    options = parse_arguments(job.command[3:], RingMember(0, PLAN.ranks))
    assert (options.steps, options.global_batch) == (60, 64)
    assert options.checkpoints.every == (PLAN.every if arm.writes else 0)
    assert options.checkpoints.alone is (arm is SpareArm.SHARED)
    assert "endpoints" not in body, "a job with named endpoints could not go to others"


def test_a_ranks_folder_has_room_for_its_steps_and_copies() -> None:
    step = 2 * 4_088_680
    assert 3 * step + 3 * step <= LOCAL_BYTES


def test_the_undisturbed_arm_always_runs_first() -> None:
    assert parse_arms(None) == tuple(SpareArm)
    assert parse_arms(["zero", "spare"]) == (SpareArm.UNDISTURBED, SpareArm.SPARE, SpareArm.ZERO)
    with pytest.raises(DemoError, match="unknown arm"):
        parse_arms(["spares"])


@pytest.mark.parametrize("change", [{"lost_after": 10}, {"lost_after": 60}, {"every": 0}])
def test_a_loss_that_shows_nothing_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(DemoError):
        dataclasses.replace(PLAN, **change).check()


def measured(arm: SpareArm, recoveries: list[dict[str, Any]], final: float = 0.25) -> SpareResult:
    runs = read([*BEFORE, *AFTER[:-1], line("end", 80.0, final_loss=final)])
    lost_at = LOST_AT if arm.loses else None
    found = {**figures(str(arm), runs, lost_at), "recoveries": recoveries, "span": 1}
    return SpareResult(arm, found, tuple(runs), lost_at, "gpu3" if lost_at else "")


def result(*, final: float = 0.25, how: str = "swap") -> dict[str, Any]:
    done = [
        measured(SpareArm.UNDISTURBED, []),
        measured(SpareArm.SPARE, [{**RECOVERY, "how": how, "why": "no port"}], final),
    ]
    return report.document("spare", PLAN, done, plots=[], emulated=["ocs0"])


def test_the_result_compares_losses_bit_by_bit() -> None:
    good = result()
    report.check(good)
    assert good["arms"]["spare"]["loss_equal"]
    with pytest.raises(DemoError, match="differs from the undisturbed"):
        report.check(result(final=0.25 + 2**-40))


def test_a_fall_back_is_not_shown_as_a_swap() -> None:
    with pytest.raises(DemoError, match="no port"):
        report.check(result(how="queue"))


def test_the_table_and_the_plot_show_every_arm(tmp_path: Path) -> None:
    console = Console(width=240, record=True, file=(tmp_path / "out").open("w"))
    console.print(report.render(result()))
    text = console.export_text()
    assert "19.5" in text
    assert "gpu4 for gpu3" in text
    done = [measured(arm, []) for arm in SpareArm]
    (file,) = plots.draw(PLAN, done, tmp_path)
    assert Path(file).stat().st_size > 10_000
