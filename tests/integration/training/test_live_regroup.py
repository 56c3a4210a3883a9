"""A short real training with a live regroup: same loss, no container restarted, less traffic."""

from __future__ import annotations

import time

import pytest

from sitefile import load_site
from testbed.demo import PAPER_SITE, CaseArm, homes
from testbed.demo.api import Controller
from testbed.demo.cases import JobSize
from testbed.demo.jobs import DemoJobs, Training
from testbed.demo.report import LOSS_TOLERANCE
from testbed.demo.trainer_log import StepLine

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

WORK = JobSize(count=2, batch=16)
STEPS = 24
LOOKS_S = 60.0
REGROUP_AFTER = 6
RED, BLUE = ("gpu0", "gpu2"), ("gpu1", "gpu3")


def training(name: str, endpoints: tuple[str, str], steps: int, image: str) -> Training:
    samples = steps * WORK.global_batch
    return Training(name, WORK, samples, endpoints, CaseArm.FRAGMENTED, "test", image)


def containers(jobs: DemoJobs, name: str) -> dict[int, str]:
    """Return the container of every rank; an agent that is late for a look leaves its own out."""
    deadline = time.monotonic() + LOOKS_S
    while len(found := dict(jobs.containers(name))) != WORK.count:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    return found


def ignore(rank: int, line: StepLine) -> None:
    pass


def test_a_live_regroup_does_not_change_the_training(controller: Controller, image: str) -> None:
    jobs = DemoJobs(controller)
    site = load_site(PAPER_SITE)

    jobs.submit(training("still", RED, STEPS, image))
    still = jobs.follow("still", WORK.count, ignore)
    jobs.wait_completed("still")
    assert [step.step for step in still.steps[0]] == list(range(STEPS))
    assert still.ends[0].final_loss < still.steps[0][0].loss

    jobs.submit(training("blue", BLUE, 10_000, image))
    jobs.wait_training("blue", step=1)
    jobs.submit(training("red", RED, STEPS, image))
    before: dict[str, dict[int, str]] = {}
    transactions = []

    def regroup(rank: int, line: StepLine) -> None:
        if rank == 0 and line.step == REGROUP_AFTER:
            before.update({name: containers(jobs, name) for name in ("red", "blue")})
            assert jobs.view("red")["span"] == 2
            plan = controller.post("/plans", {})
            assert plan["excess_span_after"] == 0
            assert sorted(plan["jobs_paused"]) == ["blue", "red"]
            transactions.append(homes.carry_out(controller, plan))
            assert {name: containers(jobs, name) for name in before} == before

    red = jobs.follow("red", WORK.count, regroup)
    blue_after = jobs.view("blue")
    red_after = jobs.wait_completed("red")
    jobs.require_running("blue")
    jobs.end("blue")

    # The same losses as without a regroup, step by step, on every rank.
    for rank in range(WORK.count):
        assert [step.loss for step in red.steps[rank]] == pytest.approx(
            [step.loss for step in still.steps[0]], rel=LOSS_TOLERANCE
        )
    assert red.ends[0].final_loss == pytest.approx(still.ends[0].final_loss, rel=LOSS_TOLERANCE)
    assert red.ends[0].accuracy == pytest.approx(still.ends[0].accuracy, abs=0.01)

    # No container was restarted; both jobs are under one aggregator each; light was moved.
    for view in (red_after, blue_after):
        assert view["restarts"] == 0
        assert view["span"] == 1
    assert before.keys() == {"red", "blue"}
    (done,) = transactions
    assert set(done["jobs"]) == {"red", "blue"}
    moved = {move["endpoint"] for move in done["moves"]}
    assert moved
    assert done["dark_time_s"].keys() == moved
    assert all(rank["dark_time_s"] > 0 for rank in red_after["ranks"] if rank["endpoint"] in moved)

    # And back again on the idle rack, as between two arms of the demo.
    homes.restore(controller, site.homes)
    assert homes.present(controller) == dict(site.homes)
