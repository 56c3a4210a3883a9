"""A stop that was not confirmed: nothing comes where a rank may live, and no run lives twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest_asyncio

from scheduler.queue.model import Preemption, QueuePolicy
from sitefile import Scheduling, load_site
from tests.parts.controller.jobs import submit
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


def started_on(rack: Rack, job: str) -> list[str]:
    return [spec.endpoint for spec in rack.engine.specs.get(job, [])]


async def reason(rack: Rack, job: str) -> str:
    return rack.desks.jobs.job(job).reason


async def test_a_victim_that_hangs_keeps_its_endpoints_until_it_has_ended(urgent: Rack) -> None:
    rack = urgent
    await submit(rack, "victim", 6, preemptible=True)
    await rack.state("victim", "running")
    rack.engine.hung = {"gpu0"}
    await submit(rack, "urgent", 6, priority=1)

    async def told() -> bool:
        return "not every container stopped" in await reason(rack, "victim")

    await rack.until(told)
    assert rack.desks.jobs.job("victim").state == "starting"
    assert rack.desks.jobs.job("urgent").state == "pending"
    await submit(rack, "small", 1)
    assert started_on(rack, "small") == []
    rack.engine.hung.clear()
    await rack.state("urgent", "running")
    assert not rack.engine.hanging
    await rack.state("victim", "pending")


async def test_a_drain_of_a_server_that_is_away_starts_no_second_run(rack: Rack) -> None:
    await submit(rack, "red", 2, restart="on-failure:9")
    await rack.state("red", "running")
    first = rack.desks.jobs.job("red")
    server = rack.site.endpoint(first.endpoints[0]).server
    rack.engine.lost = {server}
    await rack.until(lambda: not rack.parts.state.connections.servers()[server])
    await rack.desks.drains.drain("node", server, now=True)
    await rack.until(lambda: rack.engine.hanging)
    assert rack.desks.jobs.job("red").state == "starting"
    assert rack.engine.calls.count(("start", "red")) == 1
    rack.engine.lost = set()
    await rack.state("red", "running")
    assert not rack.engine.hanging
    assert [what for what, job in rack.engine.calls if job == "red"][-2:] == ["stop", "start"]
    assert rack.desks.jobs.job("red").epoch > first.epoch


async def test_what_lives_on_a_lost_server_is_stopped_when_it_is_back(rack: Rack) -> None:
    """The server stays away: the job goes on elsewhere, and nothing is placed beside its ranks."""
    await submit(rack, "red", 2, restart="on-failure:9")
    await rack.state("red", "running")
    first = rack.desks.jobs.job("red")
    server = rack.site.endpoint(first.endpoints[0]).server
    rack.engine.lost = {server}
    await rack.until(lambda: not rack.parts.state.connections.servers()[server])
    await rack.desks.drains.drain("node", server, now=True)
    await rack.until(lambda: rack.engine.calls.count(("start", "red")) == 2)
    await rack.desks.drains.undrain("node", server)
    rack.engine.lost, rack.engine.hung = set(), set(first.endpoints)
    await submit(rack, "next", 4)
    await asyncio.sleep(30)
    assert started_on(rack, "next") == []
    rack.engine.hung.clear()
    await rack.state("next", "running")
    assert rack.desks.jobs.job("red").state == "running"


async def test_endpoints_of_a_cancelled_job_that_hangs_get_nothing_new(rack: Rack) -> None:
    await submit(rack, "red", 2, endpoints=["gpu0", "gpu1"])
    await rack.state("red", "running")
    rack.engine.hung = {"gpu0"}
    await submit(rack, "next", 6)
    await rack.desks.jobs.cancel("red")
    await asyncio.sleep(30)
    assert started_on(rack, "next") == []
    assert not rack.see.light.strangers, "the job is known, it is no stranger"
    rack.engine.hung.clear()
    await rack.state("next", "running")


async def test_what_a_cancelled_job_left_is_still_held_after_a_restart(rack: Rack) -> None:
    await submit(rack, "red", 2, endpoints=["gpu0", "gpu1"])
    await rack.state("red", "running")
    rack.engine.hung = {"gpu0"}
    await rack.desks.jobs.cancel("red")
    await crash(rack)
    whole = rack.whole
    rack.whole = lambda: ready(rack)  # type: ignore[method-assign]
    await rack.up()
    rack.whole = whole  # type: ignore[method-assign]
    await submit(rack, "next", 6)
    await asyncio.sleep(30)
    assert started_on(rack, "next") == []
    rack.engine.hung.clear()
    await rack.state("next", "running")


async def ready(rack: Rack) -> bool:
    return rack.desks.health.health().status != "starting"


async def test_a_container_of_an_earlier_run_is_stopped_and_its_endpoint_held(rack: Rack) -> None:
    await submit(rack, "red", 1, endpoints=["gpu3"])
    await rack.state("red", "running")
    (status,) = rack.engine.statuses.values()
    rack.engine.hanging.append(replace(status, epoch=status.epoch - 1, endpoint="gpu0"))
    rack.engine.hung = {"gpu0"}
    cable = rack.site.endpoint("gpu0")
    rack.engine.hanging[0] = replace(rack.engine.hanging[0], server=cable.server)
    events = rack.parts.state.events
    await rack.until(lambda: any(e.reason == "EarlierRun" for e in events.since(0, 1000)))
    await submit(rack, "next", 5)
    await asyncio.sleep(30)
    assert started_on(rack, "next") == []
    rack.engine.hung.clear()
    await rack.state("next", "running")
    assert rack.desks.jobs.job("red").state == "running"
    assert list(rack.engine.statuses), "the present run goes on"
