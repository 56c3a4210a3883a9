"""The controller's queue over fakes: priorities, projects, backfill, room, restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from controller.base.errors import ServiceError
from controller.jobs.admission import spec_of
from controller.jobs.queue import EXPLAIN_BATCH
from controller.schema.jobs import JobView, read_job
from controller.schema.plans import PlanRequest
from controller.schema.submit.request import JobRequest
from controller.state.intend import keys
from controller.state.records import JobRecord
from scheduler.queue.model import Preemption, ProjectShare, QueueHold, QueuePolicy
from sitefile import CabledSite, Scheduling, load_site
from tests.parts.controller.jobs import waiting
from tests.parts.controller.rack import Rack, crash
from tests.parts.sites import PAPER

PROJECTS = Scheduling(
    projects=(ProjectShare("default"), ProjectShare("vision", 1.0, 2), ProjectShare("speech", 3.0)),
    named=True,
)


def paper(scheduling: Scheduling = PROJECTS) -> CabledSite:
    return replace(load_site(PAPER), scheduling=scheduling)


@pytest_asyncio.fixture
async def shared(tmp_path: Path) -> AsyncIterator[Rack]:
    """A controller whose site file lists projects."""
    rack = Rack(tmp_path, paper())
    await rack.up()
    yield rack
    await rack.down()


async def submit(rack: Rack, name: str, count: int, **fields: object) -> JobView:
    return await rack.desks.jobs.submit(
        read_job({"name": name, "count": count, "command": ["true"], **fields})
    )


async def test_priority_comes_before_age(rack: Rack) -> None:
    await submit(rack, "red", 6)
    await rack.state("red", "running")
    await submit(rack, "early", 4)
    await submit(rack, "urgent", 4, priority=5)
    early, urgent = await waiting(rack, "early", "urgent")
    assert early.wait and urgent.wait
    assert (urgent.wait.position, early.wait.position, urgent.wait.queued) == (1, 2, 2)
    await rack.desks.jobs.cancel("red")
    await rack.state("urgent", "running")
    assert rack.desks.jobs.job("early").state == "pending"


async def test_backfill_uses_time_limits_and_keeps_the_reservation(rack: Rack) -> None:
    await submit(rack, "red", 4, time_limit_s=1000)
    await rack.state("red", "running")
    await submit(rack, "wide", 6)
    await submit(rack, "long", 2, time_limit_s=5000)
    wide, long = await waiting(rack, "wide", "long")
    assert wide.wait and wide.wait.earliest_start
    assert wide.wait.earliest_start == pytest.approx((wide.submitted_at or 0) + 1000, abs=60)
    assert long.wait and long.wait.code == "reserved"
    assert "delay job wide" in long.reason
    await submit(rack, "short", 2, time_limit_s=500)
    await rack.state("short", "running")
    told = [e.reason for e in rack.desks.fabric.events(0, 1000) if e.object == "job/short"]
    assert "Backfilled" in told


async def test_quota_holds_a_project_back_and_names_the_remedy(shared: Rack) -> None:
    await submit(shared, "one", 2, project="vision")
    await shared.state("one", "running")
    await submit(shared, "two", 1, project="vision")
    (two,) = await waiting(shared, "two")
    assert two.wait and two.wait.code == "quota"
    assert "holds 2 of its quota of 2" in two.reason
    assert "quota is raised" in two.wait.remedy
    await submit(shared, "other", 4, project="speech")
    await shared.state("other", "running")  # a held project does not delay others


async def test_fair_share_favours_the_project_that_holds_least_for_its_weight(shared: Rack) -> None:
    await submit(shared, "d1", 2)
    await submit(shared, "s1", 2, project="speech")
    await submit(shared, "rest", 2)
    for name in ("d1", "s1", "rest"):
        await shared.state(name, "running")
    await submit(shared, "d2", 2)
    await submit(shared, "s2", 2, project="speech")
    await waiting(shared, "d2", "s2")
    await shared.service.desks.jobs.cancel("rest")
    # Both hold 2 now; speech weighs three times as much.
    await shared.state("s2", "running")
    assert shared.service.desks.jobs.job("d2").state == "pending"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"project": "unknown"}, "has no project unknown"),
        ({"project": "vision", "count": 3}, "quota of project vision is 2"),
        ({"count": 7}, "site paper has 6"),
        ({"min_memory_bytes": 10**12}, "GiB or more"),
    ],
)
async def test_a_job_that_can_never_run_is_refused(
    shared: Rack, fields: dict[str, object], text: str
) -> None:
    with pytest.raises(ServiceError, match=text) as caught:
        await submit(shared, "red", **{"count": 2, **fields})  # type: ignore[arg-type]
    assert caught.value.code == "invalid"
    assert caught.value.hint


@pytest.mark.parametrize("fields", [{"priority": 101}, {"time_limit_s": 0}, {"time_limit_s": -5}])
def test_bad_figures_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        read_job({"count": 1, **fields})


async def test_queue_survives_a_restart(rack: Rack) -> None:
    await submit(rack, "red", 6)
    await rack.state("red", "running")
    await submit(rack, "late", 2)
    await submit(rack, "urgent", 2, priority=9)
    late, urgent = await waiting(rack, "late", "urgent")
    assert urgent.wait
    await rack.down()
    await rack.up()
    again = await waiting(rack, "late", "urgent")
    assert [job.wait and job.wait.position for job in again] == [2, 1]
    assert again[1].wait
    assert again[1].wait.reserved_at == urgent.wait.reserved_at
    assert (again[0].priority, again[1].priority) == (0, 9)
    assert late.wait


async def blocked(rack: Rack, **fields: object) -> JobView:
    """Red is scattered: each aggregator has three ports left, blue wants four under one."""
    ends = ["gpu0", "gpu2"]
    await submit(rack, "red", 2, endpoints=ends, rank_order="placed", **fields)
    await rack.state("red", "running")
    await submit(rack, "blue", 4, locality="strict")
    return (await waiting(rack, "blue"))[0]


async def test_a_strict_job_shows_how_many_moves_would_make_room(rack: Rack) -> None:
    blue = await blocked(rack)
    assert blue.wait and blue.wait.plan
    assert (blue.wait.code, blue.wait.moves_needed, blue.wait.position) == ("locality", 1, 1)
    assert "moving 1 running endpoint would make it fit" in blue.reason
    hint = blue.wait.plan
    assert (hint.running_moves, hint.jobs_paused, hint.paused_gpus) == (1, ["red"], 2)
    assert hint.command == "lightloom plan --job blue"


async def test_plan_for_a_waiting_job_makes_room_and_it_starts(rack: Rack) -> None:
    await blocked(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest(job="blue"))
    assert (plan.makes_room_for, plan.running_moves, plan.jobs_paused) == ("blue", 1, ["red"])
    assert plan.worth and plan.worth.gain_low_gpu_s > 0
    done = await rack.desks.plans.apply(plan, wait_s=60)
    assert done.state == "committed"
    await rack.state("blue", "running")
    blue, red = rack.desks.jobs.job("blue"), rack.desks.jobs.job("red")
    assert (blue.span, red.span, red.pauses) == (1, 1, 1)


async def test_endpoints_reserved_by_a_plan_for_room_are_not_given_away(rack: Rack) -> None:
    await blocked(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest(job="blue"))
    await rack.desks.plans.apply(plan, wait_s=0)
    await submit(rack, "thief", 1, time_limit_s=1)
    await rack.state("blue", "running")
    assert rack.desks.jobs.job("thief").state == "pending"


async def test_they_are_not_given_away_after_a_restart_either(rack: Rack) -> None:
    """The controller dies once the new paths are proven, and finds one of their servers away."""
    await blocked(rack)
    proven = asyncio.Event()

    async def never(job: str) -> None:
        proven.set()
        await asyncio.Event().wait()

    rack.engine.thaw = never  # type: ignore[method-assign]
    plan = await rack.desks.plans.make_plan(PlanRequest(job="blue"))
    await rack.desks.plans.apply(plan, wait_s=0)
    await asyncio.wait_for(proven.wait(), 60)
    await submit(rack, "thief", 1)
    await crash(rack)
    del rack.engine.thaw
    rack.engine.lost = {"srv0"}
    up = asyncio.create_task(rack.up())
    await asyncio.sleep(30)
    assert rack.desks.jobs.job("thief").state == "pending"
    rack.engine.lost = set()
    await up
    await rack.state("blue", "running")
    assert rack.desks.jobs.job("blue").span == 1
    assert not rack.see.jobs.promised


async def test_pinned_jobs_make_no_room(rack: Rack) -> None:
    blue = await blocked(rack, pinned=True)
    assert blue.wait and blue.wait.plan is None
    with pytest.raises(ServiceError, match="no move of light makes room for job blue"):
        await rack.desks.plans.make_plan(PlanRequest(job="blue", force=True))


async def test_plan_for_a_job_that_no_move_helps_says_so(rack: Rack) -> None:
    await submit(rack, "red", 6)
    await rack.state("red", "running")
    await submit(rack, "blue", 2, locality="strict")
    await waiting(rack, "blue")
    with pytest.raises(ServiceError, match="no move of light makes room for job blue") as caught:
        await rack.desks.plans.make_plan(PlanRequest(job="blue"))
    assert caught.value.code == "conflict"


async def pushed_out(rack: Rack) -> None:
    """Red is preemptible, grey is not; an urgent job needs endpoints that they hold."""
    await submit(rack, "red", 2, preemptible=True)
    await submit(rack, "grey", 4)
    await rack.state("red", "running")
    await rack.state("grey", "running")
    await submit(rack, "urgent", 2, priority=9)


async def test_preemption_is_off_by_default(rack: Rack) -> None:
    await pushed_out(rack)
    (urgent,) = await waiting(rack, "urgent")
    assert urgent.wait and urgent.wait.code == "busy"
    assert rack.desks.jobs.job("red").state == "running"


async def test_preemption_stops_preemptible_jobs_and_queues_them_again(tmp_path: Path) -> None:
    on = Scheduling(queue=QueuePolicy(preemption=Preemption.PRIORITY))
    rack = Rack(tmp_path, paper(on))
    await rack.up()
    try:
        await pushed_out(rack)
        await rack.state("urgent", "running")
        red = rack.desks.jobs.job("red")
        assert (red.state, red.endpoints, red.started_at) == ("pending", [], None)
        assert rack.desks.jobs.job("grey").state == "running"
        assert ("stop", "red") in rack.engine.calls
        told = [e.message for e in rack.desks.fabric.events(0, 1000) if e.object == "job/red"]
        assert "stopped to make way for job urgent" in told
        await rack.desks.jobs.cancel("urgent")
        await rack.state("red", "running")
    finally:
        await rack.down()


async def test_scores_of_a_placement(rack: Rack) -> None:
    await submit(rack, "red", 4, endpoints=["gpu0", "gpu1", "gpu2", "gpu3"])
    await rack.state("red", "running")
    placement = rack.desks.jobs.job("red").placement
    assert placement
    assert (placement.span, placement.span_reachable, placement.idle) == (2, 1, 2)
    assert 0 <= placement.fragmentation <= 1
    assert placement.stranded.keys() == {2, 4, 8}


async def test_explaining_many_waiting_jobs_does_not_block_the_loop(rack: Rack) -> None:
    waiting_ = {f"j{i}": QueueHold(f"j{i}", "busy", "needs more", "wait") for i in range(3000)}
    for name in waiting_:
        request = JobRequest(name=name, count=6)
        rack.parts.state.jobs.put(JobRecord(name, spec_of(request), "image", 0.0))
    being_changed = rack.parts.state.intention()  # the running queue starts none of them
    await being_changed.acquire(*map(keys.job, waiting_))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    await rack.parts.queue._explain(waiting_)
    beside.cancel()
    assert turns >= 3000 // EXPLAIN_BATCH - 1
    assert {rack.see.jobs[name].reason for name in waiting_} == {"needs more"}
