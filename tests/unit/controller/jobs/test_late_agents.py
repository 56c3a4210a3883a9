"""Agents that are slow or unreachable when a controller restarts: no job is lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from agentlink.ranks import RankSpec
from controller.devices.engine import EngineError, EngineFault, RankState, RankStatus
from controller.schema.fabric import EventView
from controller.schema.plans import PlanRequest
from tests.parts.controller.jobs import plan_and_begin, submit
from tests.parts.controller.rack import Rack, crash


class Late:
    """Wraps a call of the engine, which gets no answer until ``answers`` is set."""

    def __init__(self, rack: Rack, call: str) -> None:
        self.asked = 0
        self.answers = False
        self._call = getattr(rack.engine, call)
        setattr(rack.engine, call, self)

    async def __call__(self, *arguments: object, **named: object) -> object:
        self.asked += 1
        if not self.answers:
            raise EngineError([EngineFault("unavailable", "server/srv0", "no answer")])
        return await self._call(*arguments, **named)


async def died_in_thaw(rack: Rack) -> None:
    """Leave red and blue frozen and all paths proven, with the controller dead."""
    reached = asyncio.Event()

    async def never(job: str) -> None:
        reached.set()
        await asyncio.Event().wait()

    rack.engine.thaw = never  # type: ignore[method-assign]
    await plan_and_begin(rack)
    await asyncio.wait_for(reached.wait(), 30)
    await crash(rack)
    del rack.engine.thaw


async def told(rack: Rack, reason: str) -> list[EventView]:
    return [e for e in rack.desks.fabric.events(0, 1000) if e.reason == reason]


async def test_a_frozen_job_waits_for_its_agents_and_goes_on(rack: Rack) -> None:
    await died_in_thaw(rack)
    late = Late(rack, "thaw")
    await rack.up()
    await rack.until(lambda: late.asked > 6)
    for job in ("red", "blue"):
        assert rack.desks.jobs.job(job).state == "running"
        assert rack.engine.states(job) == {RankState.PAUSED}
    assert rack.desks.plans.transaction("t2").finished_at is None
    assert {e.object for e in await told(rack, "WaitsForAgents")} == {"job/red", "job/blue"}
    assert len(await told(rack, "WaitsForAgents")) == 2
    late.answers = True

    async def ended() -> bool:
        return rack.desks.plans.transaction("t2").state == "committed"

    await rack.until(ended)
    assert rack.engine.states("red") == rack.engine.states("blue") == {RankState.RUNNING}


async def test_containers_that_were_not_observed_are_not_started_again(rack: Rack) -> None:
    """A busy server may not answer in time, which says nothing about its containers."""
    await died_in_thaw(rack)
    calls = len(rack.engine.calls)
    rack.engine.lost = {server.name for server in rack.site.servers}
    up = asyncio.create_task(rack.up())

    async def ended() -> bool:
        return bool(await told(rack, "Recovered"))

    await rack.until(lambda: rack.see.ready)
    await rack.until(ended)
    rack.engine.lost = set()
    await up
    assert {call for call, _ in rack.engine.calls[calls:]} == {"thaw"}
    assert rack.engine.states("red") == rack.engine.states("blue") == {RankState.RUNNING}
    await rack.state("red", "running")


async def test_a_job_that_was_being_stopped_restarts_all_its_ranks(rack: Rack) -> None:
    """The controller dies when one rank has ended; the agents continue to stop the others."""
    ends = ["gpu0", "gpu1", "gpu3", "gpu4"]
    await submit(rack, "red", 4, endpoints=ends, policy="restart")
    await rack.state("red", "running")
    reached = asyncio.Event()

    async def half(job: str, grace_s: float, *, until: int | None = None) -> list[RankStatus]:
        rack.engine.exit("red", 1, 143)
        reached.set()
        await asyncio.Event().wait()
        return []

    stop = rack.engine.stop
    rack.engine.stop = half  # type: ignore[method-assign]
    plan = await rack.desks.plans.make_plan(PlanRequest())
    await rack.desks.plans.apply(plan, wait_s=0)
    await asyncio.wait_for(reached.wait(), 30)
    await crash(rack)
    rack.engine.stop = stop  # type: ignore[method-assign]
    await rack.up()

    async def ended() -> bool:
        return rack.desks.plans.transaction("t2").state == "rolled_back"

    await rack.until(ended)
    red = rack.desks.jobs.job("red")
    assert (red.state, red.restarts) == ("running", 1)
    assert [s.state for s in rack.engine.statuses.values()] == [RankState.RUNNING] * 4


async def test_a_cancel_waits_for_a_job_that_is_being_recovered(rack: Rack) -> None:
    await submit(rack, "red", 1, endpoints=["gpu0"], policy="restart")
    await rack.state("red", "running")
    died = asyncio.Event()

    async def never(*asked: object, **named: object) -> object:
        died.set()
        return await asyncio.Event().wait()

    stop, start = rack.engine.stop, rack.engine.start
    rack.engine.stop = never  # type: ignore[method-assign, assignment]
    await rack.desks.plans.attach("gpu0", "as1", wait_s=0)
    await asyncio.wait_for(died.wait(), 60)
    await crash(rack)
    rack.engine.stop = stop  # type: ignore[method-assign]
    starts, go = asyncio.Event(), asyncio.Event()

    async def late(ranks: Sequence[RankSpec], deadline_s: float) -> list[RankStatus]:
        starts.set()
        await go.wait()
        return await start(ranks, deadline_s)

    rack.engine.start = late  # type: ignore[method-assign]
    await rack.up()
    await asyncio.wait_for(starts.wait(), 60)
    cancel = asyncio.create_task(rack.desks.jobs.cancel("red"))
    await asyncio.sleep(5)
    go.set()
    assert (await cancel).state == "cancelled"
    assert not rack.engine.statuses


async def test_a_half_started_job_queues_again_when_its_agents_confirm_its_stop(rack: Rack) -> None:
    reached = asyncio.Event()
    start = rack.engine.start

    async def never(ranks: object, deadline_s: float) -> None:
        await start(ranks, deadline_s)  # type: ignore[arg-type]
        reached.set()
        await asyncio.Event().wait()

    rack.engine.start = never  # type: ignore[method-assign, assignment]
    await submit(rack, "red", 2, endpoints=["gpu0", "gpu1"])
    await asyncio.wait_for(reached.wait(), 30)
    await crash(rack)
    rack.engine.start = start  # type: ignore[method-assign]
    before = dict(rack.engine.statuses)
    late = Late(rack, "stop")
    await rack.up()
    await rack.until(lambda: late.asked > 3)
    red = rack.desks.jobs.job("red")
    assert (red.state, red.endpoints) == ("starting", ["gpu0", "gpu1"])
    assert "no answer" in red.reason
    assert rack.engine.statuses == before
    assert len(await told(rack, "NotStopped")) == 1
    late.answers = True
    await rack.state("red", "running")
    assert rack.desks.jobs.job("red").epoch > before["red", 0].epoch


async def test_a_half_started_job_can_be_cancelled_while_its_agents_are_unreachable(
    rack: Rack,
) -> None:
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    await rack.parts.ender.save("red", lambda now: replace(now, state="starting"))
    await crash(rack)
    late = Late(rack, "stop")
    await rack.up()
    await rack.until(lambda: late.asked > 1)
    await rack.desks.jobs.cancel("red")
    red = rack.desks.jobs.job("red")
    assert red.state == "cancelled"
    assert "not every container stopped" in red.reason
