"""Preemption over the whole service: the urgent job runs, and its victims wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from base import clock
from base.pools import Pool
from controller.devices.engine import RankStatus
from controller.schema.jobs import JobView
from scheduler.queue.model import Preemption, QueuePolicy
from sitefile import Scheduling, load_site
from tests.parts.controller.jobs import submit, waiting
from tests.parts.controller.rack import Rack, crash
from tests.parts.sites import PAPER


@pytest_asyncio.fixture
async def urgent(tmp_path: Path) -> AsyncIterator[Rack]:
    """A controller with preemption by priority."""
    on = Scheduling(queue=QueuePolicy(preemption=Preemption.PRIORITY))
    rack = Rack(tmp_path, replace(load_site(PAPER), scheduling=on))
    await rack.up()
    yield rack
    await rack.down()


async def earlier(rack: Rack, hours: float, name: str, count: int, **fields: object) -> JobView:
    """Submit a job some hours ago."""
    state = rack.parts.state
    now, state.clock = state.clock, lambda: clock.time() - 3600.0 * hours
    try:
        return await submit(rack, name, count, **fields)
    finally:
        state.clock = now


async def test_a_victim_older_than_the_priority_makes_up_for_is_stopped_once(urgent: Rack) -> None:
    rack = urgent
    await earlier(rack, 2.0, "red", 6, preemptible=True)
    await rack.state("red", "running")
    await submit(rack, "urgent", 2, priority=1)
    await rack.state("urgent", "running")
    rounds = rack.parts.queue.rounds
    rack.parts.state.jobs.wake.set()
    await rack.until(lambda: rack.parts.queue.rounds > rounds)
    red = rack.desks.jobs.job("red")
    assert (red.state, rack.engine.calls.count(("stop", "red"))) == ("pending", 1)
    await rack.desks.jobs.cancel("urgent")
    await rack.state("red", "running")


async def test_free_endpoints_are_kept_for_the_urgent_job_until_it_starts(urgent: Rack) -> None:
    """A GPU is lost while the victim stops: the victim does not return before the urgent job."""
    rack = urgent
    await earlier(rack, 2.0, "red", 3, preemptible=True)
    await submit(rack, "grey", 3)
    await rack.state("red", "running")
    await rack.state("grey", "running")
    lost = rack.desks.jobs.job("red").endpoints[0]
    stop = rack.engine.stop

    async def stop_and_lose(job: str, grace_s: float, *, until: int) -> list[RankStatus]:
        rack.engine.sick[lost] = "its GPU is away"
        rack.parts.state.light.unfit = dict(rack.engine.sick)
        return await stop(job, grace_s, until=until)

    rack.engine.stop = stop_and_lose  # type: ignore[method-assign]
    await submit(rack, "urgent", 3, priority=1)
    await rack.until(lambda: ("stop", "red") in rack.engine.calls)
    await submit(rack, "small", 1)
    (small,) = await waiting(rack, "small")
    assert small.reason == "other jobs were stopped so that job urgent can start"
    rack.engine.sick.clear()
    await rack.state("urgent", "running")
    assert rack.engine.calls.count(("stop", "red")) == 1


async def test_a_job_for_which_others_were_stopped_comes_first_after_a_restart(
    urgent: Rack,
) -> None:
    """The controller dies while the victim, which is older, stops: urgent starts before it."""
    rack = urgent
    await earlier(rack, 2.0, "red", 6, preemptible=True)
    await rack.state("red", "running")
    stop, stopping = rack.engine.stop, asyncio.Event()

    async def never(job: str, grace_s: float, *, until: int) -> list[RankStatus]:
        stopping.set()
        await asyncio.Event().wait()
        return []

    rack.engine.stop = never  # type: ignore[method-assign]
    await submit(rack, "urgent", 2, priority=1)
    await asyncio.wait_for(stopping.wait(), 30)
    await crash(rack)
    rack.engine.stop = stop  # type: ignore[method-assign]
    begun = len(rack.engine.calls)
    await rack.up()
    await rack.state("urgent", "running")
    calls = rack.engine.calls[begun:]
    assert ("start", "red") not in calls[: calls.index(("start", "urgent"))]
    assert rack.desks.jobs.job("red").state == "pending"


async def test_nothing_is_stopped_for_a_job_that_was_cancelled_meanwhile(
    urgent: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    rack = urgent
    await submit(rack, "red", 6, preemptible=True)
    await rack.state("red", "running")
    state, decide = rack.parts.state, Pool.run

    async def decided(*args: Any, **kwargs: Any) -> Any:
        answer = await decide(*args, **kwargs)
        if "urgent" in state.jobs:
            state.jobs.change("urgent", state="cancelled")
        return answer

    monkeypatch.setattr(Pool, "run", decided)
    await submit(rack, "urgent", 2, priority=1)
    await submit(rack, "later", 2)
    await waiting(rack, "later")
    assert state.jobs["urgent"].state == "cancelled"
    assert ("stop", "red") not in rack.engine.calls


async def test_a_refused_requeue_wakes_the_queue_once_the_job_runs_again(rack: Rack) -> None:
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    jobs, woken = rack.parts.state.jobs, list[str]()
    wake = jobs.wake.set

    def noted() -> None:
        woken.append(jobs["red"].state)
        wake()

    jobs.wake.set = noted  # type: ignore[method-assign]
    rack.disk.fault = "refused"
    await rack.parts.jobs.requeue("red", "to make way")
    rack.disk.release()
    assert jobs["red"].state == "running"
    assert woken[-1] == "running"
