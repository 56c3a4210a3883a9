"""Slow plans delay only other plans, and end when they are no longer wanted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
import pytest_asyncio

from controller.base.errors import ServiceError
from controller.plans import line as plan_line
from controller.plans.line import LINE_S, WAITING, PlanLine
from controller.schema.plans import PlanRequest, PlanView
from scheduler.model import Fabric, Limits, Plan
from scheduler.regroup import plan as regroup
from testbed.simulated.work import WorkEvent
from tests.parts.api.apps import app_of
from tests.parts.controller.jobs import scattered, submit
from tests.parts.controller.rack import Rack

Clock = Callable[[], float]


class Blocked:
    """A planner with a hard problem: it computes until ``go`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = WorkEvent()
        self.began = 0
        self.most = 0
        self._now = 0
        self._plan = regroup.plan_regroup
        monkeypatch.setattr(regroup, "plan_regroup", self)

    def __call__(self, fabric: Fabric, limits: Limits, *, clock: Clock) -> Plan:
        self.began += 1
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            self.go.wait()
            return self._plan(fabric, limits, clock=clock)
        finally:
            self._now -= 1


@pytest_asyncio.fixture
async def blocked(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Blocked]:
    """A planner that blocks, after its warm-up."""
    await rack.until(lambda: not rack.see.searches)
    found = Blocked(monkeypatch)
    yield found
    found.go.set()


async def test_running_plans_do_not_delay_jobs(rack: Rack, blocked: Blocked) -> None:
    """More plans are requested than asyncio's own pool has threads, and the planner is stuck."""
    plans = [asyncio.create_task(rack.desks.plans.make_plan(PlanRequest())) for _ in range(40)]
    await rack.until(lambda: blocked.began)
    await submit(rack, "red", 4)
    await rack.state("red", "running")
    await rack.desks.jobs.cancel("red")
    assert not any(plan.done() and plan.exception() is None for plan in plans)
    blocked.go.set()
    ended = await asyncio.gather(*plans, return_exceptions=True)
    made = [plan for plan in ended if isinstance(plan, PlanView)]
    refused = [error for error in ended if isinstance(error, ServiceError)]
    assert (len(made), blocked.most) == (1 + WAITING, 1)
    assert len(made) + len(refused) == len(plans)
    assert {error.code for error in refused} == {"unavailable"}
    assert "the planner is busy with another plan" in refused[0].message
    assert refused[0].hint


async def test_the_api_says_that_the_planner_is_busy(
    rack: Rack, blocked: Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_line, "WAITING", 0)
    first = asyncio.create_task(rack.desks.plans.make_plan(PlanRequest()))
    await rack.until(lambda: blocked.began)
    transport = httpx.ASGITransport(app=app_of(rack.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8470") as client:
        reply = await client.post("/api/v1/plans", json={})
    assert (reply.status_code, reply.json()["code"]) == (503, "unavailable")
    assert "the planner is busy" in reply.json()["detail"]
    blocked.go.set()
    await first


async def test_the_wait_of_a_plan_is_bounded(rack: Rack, blocked: Blocked) -> None:
    patient = PlanRequest(time_limit_s=2 * LINE_S)
    first = asyncio.create_task(rack.desks.plans.make_plan(patient))
    await rack.until(lambda: blocked.began)
    with pytest.raises(ServiceError, match="did not become free within") as caught:
        await rack.desks.plans.make_plan(PlanRequest())
    assert caught.value.code == "unavailable"
    blocked.go.set()
    await first


def endless(ended: WorkEvent) -> Callable[[Clock], None]:
    """Return a computation that runs until its clock stops it."""

    def work(clock: Clock) -> None:
        try:
            while True:
                clock()
        finally:
            ended.set()

    return work


async def test_the_time_out_ends_the_work_itself() -> None:
    line, ended = PlanLine(), WorkEvent()
    with pytest.raises(ServiceError, match="took too long") as caught:
        await line.compute(endless(ended), 1.0)
    assert caught.value.code == "timeout"
    assert await line.compute(lambda clock: "next", 60) == "next"
    assert ended.is_set(), "the next computation began while this one was running"


async def test_a_cancelled_caller_ends_the_work_itself() -> None:
    line, ended = PlanLine(), WorkEvent()
    began = WorkEvent()

    def work(clock: Clock) -> None:
        began.set()
        endless(ended)(clock)

    caller = asyncio.create_task(line.compute(work, 600))
    await asyncio.sleep(1.0)
    assert began.is_set()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert await line.compute(lambda clock: "next", 60) == "next"
    assert ended.is_set()
    assert not line.busy


async def test_a_cancelled_caller_in_line_does_not_block_the_others() -> None:
    line, go = PlanLine(), WorkEvent()

    def waits(_: Clock) -> str:
        go.wait()
        return "first"

    first = asyncio.create_task(line.compute(waits, 600))
    await asyncio.sleep(0)
    second = asyncio.create_task(line.compute(lambda clock: "second", 600))
    third = asyncio.create_task(line.compute(lambda clock: "third", 600))
    await asyncio.sleep(0)
    second.cancel()
    go.set()
    assert await first == "first"
    assert await third == "third"
    assert second.cancelled()


async def test_an_error_in_the_work_is_raised_and_the_next_plan_runs() -> None:
    line = PlanLine()

    def broken(clock: Clock) -> None:
        raise ValueError(f"at {clock()}")

    with pytest.raises(ValueError, match="at "):
        await line.compute(broken, 60)
    assert await line.compute(lambda clock: 7, 60) == 7


async def test_the_planner_reads_its_clock_while_it_computes(rack: Rack) -> None:
    """So the clock can end a real plan in its thread."""
    await scattered(rack)
    state = rack.see
    fabric = state.fabric()
    readings = 0

    def clock() -> float:
        nonlocal readings
        readings += 1
        if readings > 2:
            raise plan_line.StoppedError
        return 0.0

    with pytest.raises(plan_line.StoppedError):
        regroup.plan_regroup(fabric, Limits(), clock=clock)
