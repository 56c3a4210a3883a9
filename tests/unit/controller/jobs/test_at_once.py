"""Concurrent operations on one job: no interleaving brings an ended job back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from controller.base import failpoints
from controller.base.errors import ServiceError
from controller.devices.engine import RankState, RankStatus
from controller.devices.openflow.rules.program import FlowProgram
from controller.schema.jobs import JobView
from controller.schema.plans import PlanRequest, TransactionView
from controller.state.writes import PutJob, Write
from tests.parts.controller.jobs import scattered, submit
from tests.parts.controller.rack import Rack


class Held:
    """Wraps a call of the engine and blocks it until ``go`` is set."""

    def __init__(self, rack: Rack, call: str) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self._call = getattr(rack.engine, call)
        setattr(rack.engine, call, self)

    async def __call__(self, *arguments: object, **named: object) -> object:
        self.reached.set()
        await self.go.wait()
        return await self._call(*arguments, **named)


async def begun(work: object, held: Held) -> asyncio.Task[JobView]:
    task = asyncio.ensure_future(work)  # type: ignore[arg-type]
    await asyncio.wait_for(held.reached.wait(), 30)
    return task


async def test_a_job_that_fails_while_it_is_paused_stays_failed(rack: Rack) -> None:
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    freeze = Held(rack, "freeze")
    pause = await begun(rack.desks.jobs.pause("red"), freeze)
    rack.engine.exit("red", 1, 7)
    await rack.state("red", "failed")
    freeze.go.set()
    with pytest.raises(ServiceError, match="red is failed, not running"):
        await pause
    assert rack.desks.jobs.job("red").state == "failed"
    assert all(e.state == "idle" for e in await rack.desks.fabric.endpoints())


async def test_a_job_that_is_being_paused_is_not_moved_and_a_cancel_waits(rack: Rack) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    freeze = Held(rack, "freeze")
    pause = await begun(rack.desks.jobs.pause("red"), freeze)
    with pytest.raises(ServiceError, match="job red is being paused") as caught:
        await rack.desks.plans.apply(plan, wait_s=0)
    assert caught.value.code == "conflict"
    with pytest.raises(ServiceError, match="red is being paused, not running"):
        await rack.desks.jobs.pause("red")
    stop = Held(rack, "stop")
    cancel = asyncio.create_task(rack.desks.jobs.cancel("red"))
    await asyncio.sleep(5)
    assert not stop.reached.is_set()
    freeze.go.set()
    assert (await pause).state == "paused"
    stop.go.set()
    assert (await cancel).state == "cancelled"


@pytest.mark.parametrize("policy", ["pause", "restart"])
async def test_a_job_that_is_ending_is_neither_moved_nor_started_again(
    rack: Rack, policy: str
) -> None:
    ends = ["gpu0", "gpu2"]
    await submit(rack, "red", 2, endpoints=ends, rank_order="placed", policy=policy)
    await rack.state("red", "running")
    plan = await rack.desks.plans.make_plan(PlanRequest())
    assert plan.moves
    stop = Held(rack, "stop")
    cancel = await begun(rack.desks.jobs.cancel("red"), stop)
    with pytest.raises(ServiceError, match="job red is ending"):
        await rack.desks.plans.apply(plan, wait_s=60)
    with pytest.raises(ServiceError, match="job red is ending"):
        await rack.desks.plans.attach("gpu0", "as1", wait_s=60)
    with pytest.raises(ServiceError, match="job red is ending"):
        await rack.parts.starter.restart("red")
    with pytest.raises(ServiceError, match="red is ending, not running"):
        await rack.desks.jobs.pause("red")
    stop.go.set()
    assert (await cancel).state == "cancelled"
    assert not rack.engine.statuses


async def test_a_second_cancel_leaves_the_next_job_of_that_name_alone(rack: Rack) -> None:
    """While a slow agent delays the first cancel, others join it and a new job is submitted."""
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    stop = Held(rack, "stop")
    cancels = [asyncio.create_task(rack.desks.jobs.cancel("red")) for _ in range(3)]
    await asyncio.wait_for(stop.reached.wait(), 30)
    with pytest.raises(ServiceError, match="exists and is running"):
        await submit(rack, "red", 2)
    stop.go.set()
    assert [(await cancel).state for cancel in cancels] == ["cancelled"] * 3
    assert rack.engine.calls.count(("stop", "red")) == 1
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    await asyncio.sleep(10)
    assert rack.desks.jobs.job("red").state == "running"
    assert rack.engine.states("red") == {RankState.RUNNING}


async def test_a_cancel_also_waits_for_operations_that_begin_meanwhile(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the job's start, at whose end a move of the job's light begins."""
    start, freeze = Held(rack, "start"), Held(rack, "freeze")
    ender, moves = rack.parts.ender, list[asyncio.Task[TransactionView]]()
    keep = ender.keep

    async def moved(name: str) -> None:
        if rack.see.jobs[name].state == "running" and not moves:
            attach = rack.desks.plans.attach("gpu0", "as1", wait_s=30)
            moves.append(asyncio.create_task(attach))
            await asyncio.wait_for(freeze.reached.wait(), 30)
        await keep(name)

    monkeypatch.setattr(ender, "keep", moved)
    await submit(rack, "red", 2, endpoints=["gpu0", "gpu1"])
    await asyncio.wait_for(start.reached.wait(), 30)
    cancel = asyncio.create_task(rack.desks.jobs.cancel("red"))
    stop = Held(rack, "stop")
    start.go.set()
    await asyncio.wait_for(freeze.reached.wait(), 30)
    await asyncio.sleep(5)
    assert not stop.reached.is_set()
    freeze.go.set()
    stop.go.set()
    assert (await cancel).state == "cancelled"
    assert (await moves[0]).state == "committed"
    assert not rack.engine.statuses


async def test_the_name_of_a_job_is_free_as_soon_as_its_end_is_visible(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its flows leave the aggregators later, and an aggregator may be slow."""
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    go, slow = asyncio.Event(), asyncio.Event()
    install = rack.aggregators.install

    async def later(programs: Mapping[str, FlowProgram], *, deadline_s: float) -> None:
        slow.set()
        await go.wait()
        await install(programs, deadline_s=deadline_s)

    monkeypatch.setattr(rack.aggregators, "install", later)
    for rank in range(2):
        rack.engine.exit("red", rank, 0)
    await rack.state("red", "completed")
    await asyncio.wait_for(slow.wait(), 30)
    await submit(rack, "red", 2)
    await rack.state("red", "starting")
    await asyncio.sleep(5)
    go.set()
    await rack.state("red", "running")
    assert rack.engine.states("red") == {RankState.RUNNING}


async def test_a_waiting_restart_leaves_the_next_job_of_that_name_alone(rack: Rack) -> None:
    await submit(rack, "red", 2, restart="on-failure")
    await rack.state("red", "running")
    rack.engine.exit("red", 0, 1)
    await rack.state("red", "starting")
    await rack.desks.jobs.cancel("red")
    start = Held(rack, "start")
    calls: list[Sequence[object]] = []
    inner = start._call

    async def noted(*arguments: object) -> list[RankStatus]:
        calls.append(arguments)
        return await inner(*arguments)  # type: ignore[no-any-return]

    start._call = noted
    await submit(rack, "red", 2)
    await asyncio.wait_for(start.reached.wait(), 30)
    await asyncio.sleep(5)  # the wait of the old job's restart is over
    start.go.set()
    await rack.state("red", "running")
    await asyncio.sleep(5)
    assert len(calls) == 1
    assert rack.desks.jobs.job("red").restarts == 0


async def test_a_job_that_could_not_be_saved_leaves_no_trace(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue decides while the write is pending, and then the disk refuses it."""
    writing, refuse = asyncio.Event(), asyncio.Event()
    commit = rack.store.commit

    async def refused(*writes: Write) -> None:
        if not any(isinstance(w, PutJob) and w.job.name == "red" for w in writes):
            return await commit(*writes)
        monkeypatch.setattr(rack.store, "commit", commit)
        writing.set()
        await refuse.wait()
        raise ServiceError("failed", "the disk is full")

    await submit(rack, "green", 6)
    await rack.state("green", "running")
    await submit(rack, "blue", 1)  # waits, so that the queue has a decision to make
    monkeypatch.setattr(rack.store, "commit", refused)
    request = asyncio.create_task(submit(rack, "red", 2))
    await asyncio.wait_for(writing.wait(), 30)
    rounds = rack.parts.queue.rounds
    rack.parts.state.jobs.wake.set()
    await rack.until(lambda: rack.parts.queue.rounds > rounds)
    refuse.set()
    with pytest.raises(ServiceError, match="the disk is full"):
        await request
    assert [job.name for job in await rack.desks.jobs.jobs()] == ["green", "blue"]
    assert {s.job for s in rack.engine.statuses.values()} == {"green"}
    await rack.desks.jobs.cancel("green")
    await rack.state("blue", "running")
    await submit(rack, "red", 2)
    await rack.state("red", "running")


async def test_a_job_cancelled_while_its_start_is_not_durable_stays_cancelled(
    rack: Rack,
) -> None:
    writing, refuse, jobs = asyncio.Event(), asyncio.Event(), rack.parts.state.jobs

    async def refused(point: str) -> None:
        if point == "save-job.before" and jobs["red"].state == "starting" and not writing.is_set():
            writing.set()
            await refuse.wait()
            raise ServiceError("failed", "the disk is full")

    with failpoints.hooked(refused):
        await submit(rack, "red", 2)
        await asyncio.wait_for(writing.wait(), 60)
        cancel = asyncio.create_task(rack.desks.jobs.cancel("red"))
        await asyncio.sleep(1)
        assert not cancel.done(), "it waits until the outcome of the start is known"
        refuse.set()
        assert (await cancel).state == "cancelled"
    await asyncio.sleep(10)
    assert rack.desks.jobs.job("red").state == "cancelled"
    assert not rack.engine.statuses
