"""Dark-time budgets: what a job tolerates, and how a plan that needs more is handled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.base.errors import ServiceError
from controller.fabric import dark_time
from controller.jobs.admission import spec_of
from controller.ranks.environment import environment
from controller.ranks.nccl import Network
from controller.ranks.tolerance import IB_MARGIN, check_dark_time, ib_budget_s
from controller.schema.jobs import read_job
from controller.schema.plans import PlanRequest
from controller.state.records import JobRecord
from ocs_driver.base import Capabilities
from scheduler.model import Policy
from tests.parts.controller.jobs import scattered, submit
from tests.parts.controller.rack import Rack
from tests.parts.controller.switch import FakeOcs


def job(**request: object) -> JobRecord:
    asked = read_job({"name": "red", "count": 1, **request})
    return JobRecord("red", spec_of(asked), "image", 0.0, state="running")


def test_the_budget_of_a_queue_pair() -> None:
    """The figures of the InfiniBand formula for the usual settings."""
    assert ib_budget_s({"NCCL_IB_TIMEOUT": "14"}) == pytest.approx(0.47, abs=0.01)
    assert ib_budget_s({"NCCL_IB_TIMEOUT": "18"}) == pytest.approx(7.5, abs=0.1)
    assert ib_budget_s({}) == pytest.approx(30, abs=0.1)
    assert ib_budget_s({"NCCL_IB_TIMEOUT": "long"}) is None
    assert ib_budget_s({"NCCL_IB_RETRY_CNT": "9"}) is None


def test_the_emitted_budget_is_four_times_the_longest_bulk() -> None:
    env = environment("red", 0, ["10.0.0.1"], {}, dark_s=0.52, network=Network())
    budget = ib_budget_s(env)
    assert budget is not None
    assert budget >= IB_MARGIN * (0.5 + dark_time.CONTROL_S)


@pytest.mark.parametrize(
    ("request_", "policy", "dark_s", "verdict", "moved"),
    [
        ({}, Policy.LIVE, 0.2, "ok", Policy.LIVE),
        ({}, Policy.LIVE, 4.5, "downgraded", Policy.PAUSE),
        ({"env": {"NCCL_IB_TIMEOUT": "14"}}, Policy.LIVE, 0.2, "downgraded", Policy.PAUSE),
        ({"env": {"NCCL_IB_TIMEOUT": "20"}}, Policy.LIVE, 5.0, "ok", Policy.LIVE),
        ({"env": {"NCCL_IB_TIMEOUT": "x"}}, Policy.LIVE, 4.5, "downgraded", Policy.PAUSE),
        ({}, Policy.PAUSE, 4.5, "ok", Policy.PAUSE),
        ({}, Policy.PAUSE, 31.0, "refused", Policy.PAUSE),
        ({"dark_tolerance_s": 0.1}, Policy.PAUSE, 0.2, "refused", Policy.PAUSE),
        ({"dark_tolerance_s": 0.1}, Policy.LIVE, 0.2, "refused", Policy.LIVE),
        ({"dark_tolerance_s": 0.1}, Policy.RESTART, 9.0, "ok", Policy.RESTART),
    ],
)
def test_a_move_is_accepted_downgraded_or_refused(
    request_: dict[str, object], policy: Policy, dark_s: float, verdict: str, moved: Policy
) -> None:
    found = check_dark_time(job(**request_), policy, dark_s)
    assert (found.verdict, found.policy) == (verdict, moved)
    assert bool(found.reason) is (verdict != "ok")


async def test_a_plan_beyond_a_jobs_tolerance_is_refused_with_the_reason(rack: Rack) -> None:
    ends = ["gpu0", "gpu2", "gpu1", "gpu3"]
    await submit(rack, "red", 4, endpoints=ends, dark_tolerance_s=0.001)
    await rack.state("red", "running")
    plan = await rack.desks.plans.make_plan(PlanRequest())
    (budget,) = plan.budgets
    assert (budget.job, budget.verdict, budget.tolerance_s) == ("red", "refused", 0.001)
    asked = len(rack.switch.applied)
    with pytest.raises(ServiceError) as caught:
        await rack.desks.plans.apply(plan, wait_s=1)
    assert (caught.value.code, caught.value.object) == ("conflict", "job/red")
    assert "it tolerates 0.001 s" in caught.value.message
    assert len(rack.switch.applied) == asked


class SlowOcs(FakeOcs):
    """A switch that says that it may take five seconds."""

    async def capabilities(self) -> Capabilities:
        return replace(await super().capabilities(), switch_time_s=5.0, bulk_time_s=5.0)


async def test_a_live_job_that_would_be_dark_too_long_is_paused_instead(rack: Rack) -> None:
    await rack.down()
    circuits, rack.switch = rack.switch.circuits, SlowOcs()
    rack.switch.circuits = circuits
    await rack.up()
    await scattered(rack, Policy.LIVE)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    assert {b.verdict for b in plan.budgets} == {"downgraded"}
    done = await rack.desks.plans.apply(plan, wait_s=60)
    assert done.state == "committed"
    assert ("freeze", "red") in rack.engine.calls
    downgraded = [e for e in rack.desks.fabric.events(0, 1000) if e.reason == "Downgraded"]
    assert {e.object for e in downgraded} == {f"job/{b.job}" for b in plan.budgets}
