"""Plans are computed in a process of their own, whose end is never the controller's."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import termios
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from base.processes import Worker
from controller.base.errors import ServiceError
from controller.plans import planner
from controller.plans.line import PlanLine
from controller.schema.plans import PlanRequest, PlanView
from tests.parts.api.apps import app_of
from tests.parts.controller.jobs import scattered
from tests.parts.controller.rack import Rack
from tests.parts.tasks import Hang, Look, worker

pytestmark = pytest.mark.real_time

LIMIT_S = 60.0


@pytest_asyncio.fixture
async def planned(tmp_path: Path) -> AsyncIterator[Rack]:
    """A controller with two jobs that have to swap places, and a planner that is warm."""
    rack = Rack(tmp_path)
    rack.planner = Worker("scheduler")
    await rack.up()
    await rack.until(lambda: process_of(rack) and not rack.see.searches)
    await scattered(rack)
    yield rack
    await rack.down()


def process_of(rack: Rack) -> int | None:
    """Return the planner's process."""
    return None if rack.planner is None else rack.planner.pid


def held(rack: Rack) -> int:
    """Hold the planner's process, as a search that does not end would; return it.

    A stop takes effect when the process runs next: a task that comes earlier would be read.
    """
    process = process_of(rack)
    assert process is not None
    os.kill(process, signal.SIGSTOP)
    end = time.monotonic() + LIMIT_S
    while Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "T":
        assert time.monotonic() < end, "it does not stop"
        time.sleep(0.001)
    return process


def given(process: int) -> bool:
    """Whether a process that is held has got a task, which it cannot read."""
    with Path(f"/proc/{process}/fd/0").open("rb", buffering=0) as pipe:
        return fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) != bytes(4)


def alive(process: int) -> bool:
    """Whether a process of ours has not been waited for."""
    return Path(f"/proc/{process}").exists()


async def until_gone(process: int) -> None:
    """Wait until a process is gone."""
    async with asyncio.timeout(LIMIT_S):
        while alive(process):  # noqa: ASYNC110 - it is no child of this loop
            await asyncio.sleep(0.01)


async def begun(rack: Rack, process: int) -> asyncio.Task[PlanView]:
    """Ask for a plan; return once the process has got it."""
    asked = asyncio.create_task(rack.desks.plans.make_plan(PlanRequest()))
    await rack.until(lambda: given(process))
    return asked


async def test_the_plan_is_that_of_a_thread(planned: Rack, tmp_path: Path) -> None:
    process = process_of(planned)
    made = await planned.service.desks.plans.make_plan(PlanRequest())
    assert process_of(planned) == process
    assert made.excess_span_after < made.excess_span_before
    planned.planner = None
    await planned.down()
    await planned.up()
    assert process is not None
    assert not alive(process)
    inline = await planned.service.desks.plans.make_plan(PlanRequest())
    assert inline.moves == made.moves


async def test_batches_are_cut_there_too(planned: Rack) -> None:
    made = await planned.service.desks.plans.make_plan(PlanRequest(max_dark=64))
    assert made.batches is not None
    assert made.batches.batches == 1
    with pytest.raises(ServiceError, match="no order") as caught:
        await planned.service.desks.plans.make_plan(PlanRequest(max_dark=1))
    assert caught.value.code == "conflict"
    assert "endpoints dark at once" in caught.value.hint


async def test_a_process_that_dies_in_the_middle_is_an_answer(planned: Rack) -> None:
    process = held(planned)
    transport = httpx.ASGITransport(app=app_of(planned.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8470") as client:
        asked = asyncio.create_task(client.post("/api/v1/plans", json={}))
        await planned.until(lambda: given(process))
        os.kill(process, signal.SIGKILL)
        reply = await asked
        assert (reply.status_code, reply.json()["code"]) == (503, "unavailable")
        assert "its process was killed (SIGKILL)" in reply.json()["detail"]
        assert "try again" in reply.json()["hint"]
        again = await client.post("/api/v1/plans", json={})
    assert again.status_code == 200
    assert process_of(planned) not in (process, None)


async def test_a_caller_that_leaves_ends_the_process(planned: Rack) -> None:
    process = held(planned)
    asked = await begun(planned, process)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await until_gone(process)
    assert (await planned.service.desks.plans.make_plan(PlanRequest())).moves


async def test_a_time_out_ends_the_process(planned: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "PLAN_GRACE_S", 0.1)
    process = held(planned)
    with pytest.raises(ServiceError, match="took too long") as caught:
        await planned.service.desks.plans.make_plan(PlanRequest(time_limit_s=0.1))
    assert caught.value.code == "timeout"
    await until_gone(process)


async def test_the_controller_stops_in_the_middle_of_a_plan(planned: Rack) -> None:
    process = held(planned)
    asked = await begun(planned, process)
    await planned.down()
    assert not alive(process)
    with pytest.raises(ServiceError, match="ended with the program that needs it"):
        await asked
    assert process_of(planned) is None
    planned.planner = Worker("scheduler")
    await planned.up()


async def test_two_plans_at_once_are_computed_one_after_the_other(planned: Rack) -> None:
    process = held(planned)
    first = await begun(planned, process)
    second = asyncio.create_task(planned.service.desks.plans.make_plan(PlanRequest()))
    await asyncio.sleep(0.05)
    assert not first.done()
    assert not second.done()
    os.kill(process, signal.SIGCONT)
    made = await asyncio.gather(first, second)
    assert made[0].moves == made[1].moves
    assert process_of(planned) == process


async def test_the_next_in_line_gets_a_new_process_when_the_first_leaves(tmp_path: Path) -> None:
    kept = worker()
    line = PlanLine(kept)
    try:
        first = asyncio.create_task(line.compute(Hang(str(tmp_path / "begun")), LIMIT_S))
        async with asyncio.timeout(LIMIT_S):
            while not (tmp_path / "begun").exists():  # noqa: ASYNC110 - written by a process
                await asyncio.sleep(0.01)
        before = kept.pid
        second = asyncio.create_task(line.compute(Look(), LIMIT_S))
        await asyncio.sleep(0)
        first.cancel()
        found = await second
        assert found.process not in (before, None)
        assert not line.busy
    finally:
        await line.close()
