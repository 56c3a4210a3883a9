"""The whole path over fakes: submit → containers → plan → apply → commit, and its failures."""

from __future__ import annotations

import asyncio

import pytest

from controller.base.errors import ServiceError
from controller.devices.engine import RankState
from controller.jobs import queue
from controller.schema.plans import PlanRequest
from scheduler.model import Locality, Policy
from tests.parts.controller.jobs import scattered, submit
from tests.parts.controller.rack import Rack


async def test_the_first_start_connects_the_site_files_homes(rack: Rack) -> None:
    endpoints = await rack.desks.fabric.endpoints()
    assert {e.name: e.home for e in endpoints} == rack.site.homes
    assert all(e.state == "idle" for e in endpoints)
    assert len(rack.switch.circuits) == 6


async def test_regroup_of_a_running_job(rack: Rack) -> None:
    red = await scattered(rack)
    assert (red.spread, red.excess_span, red.ring_crossings) == ({"as0": 2, "as1": 2}, 1, 4)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    assert plan.excess_span_after == 0
    assert plan.circuits.make and plan.predicted_dark_time_s > 0
    done = await rack.desks.plans.apply(plan, wait_s=60)
    assert (done.state, done.error) == ("committed", "")
    assert [p.name for p in done.phases] == [
        "admit",
        "quiesce",
        "drain",
        "switch",
        "qualify",
        "route",
        "resume",
        "commit",
    ]
    after = rack.desks.jobs.job("red")
    assert (after.span, after.excess_span, after.restarts) == (1, 0, 0)
    assert after.endpoints == red.endpoints
    assert rack.engine.states("red") == {RankState.RUNNING}
    assert rack.engine.calls.count(("freeze", "red")) == rack.engine.calls.count(("thaw", "red"))
    homes = {e.name: e.home for e in await rack.desks.fabric.endpoints()}
    assert homes == {e: at.aggregator for e, at in rack.aggregators.light().items()}
    assert homes == plan.homes_after


async def test_a_plan_without_gain_is_empty_and_is_not_applied(rack: Rack) -> None:
    plan = await rack.desks.plans.make_plan(PlanRequest())
    assert plan.empty
    with pytest.raises(ServiceError) as caught:
        await rack.desks.plans.apply(plan, wait_s=1)
    assert caught.value.code == "invalid"


async def test_a_request_for_more_endpoints_than_the_site_has_is_refused(rack: Rack) -> None:
    with pytest.raises(ServiceError) as caught:
        await submit(rack, "big", 7)
    assert caught.value.code == "invalid"
    assert "has 6" in caught.value.message


async def test_a_waiting_job_has_a_reason_and_starts_when_it_can(rack: Rack) -> None:
    await submit(rack, "red", 4)
    await submit(rack, "blue", 4)
    await submit(rack, "green", 3)
    await rack.state("red", "running")

    async def reported() -> bool:
        blue, green = (
            rack.desks.jobs.job("blue"),
            rack.desks.jobs.job("green"),
        )
        return "2 of 6 are idle" in blue.reason and "2 of 6 are idle" in green.reason

    await rack.until(reported)
    await rack.desks.jobs.cancel("red")
    await rack.state("blue", "running")
    assert rack.desks.jobs.job("green").state == "pending"
    await rack.desks.jobs.cancel("blue")
    await rack.state("green", "running")


async def test_environment_names_the_ranks(rack: Rack) -> None:
    await submit(
        rack, "red", 2, endpoints=["gpu4", "gpu0"], rank_order="placed", env={"APP_A": "b"}
    )
    await rack.state("red", "running")
    specs = rack.engine.specs["red"]
    assert [s.endpoint for s in specs] == ["gpu4", "gpu0"]
    assert specs[1].env["LIGHTLOOM_RANK"] == "1"
    assert specs[1].env["APP_A"] == "b"
    assert '"worker":["10.77.0.14:12345","10.77.0.10:12345"]' in specs[0].env["TF_CONFIG"]
    assert specs[0].emulated_share == 0.25


async def test_placement_by_regroup_moves_idle_endpoints_first(rack: Rack) -> None:
    await submit(rack, "red", 4, locality=Locality.REGROUP)
    await rack.state("red", "running")
    red = rack.desks.jobs.job("red")
    assert red.span == 1
    assert {e: at.aggregator for e, at in rack.aggregators.light().items()} == {
        e.name: e.home for e in await rack.desks.fabric.endpoints()
    }


async def test_a_job_completes_when_all_ranks_exit_with_zero(rack: Rack) -> None:
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    rack.engine.exit("red", 0, 0)
    rack.engine.exit("red", 1, 0)
    await rack.state("red", "completed")
    red = rack.desks.jobs.job("red")
    assert red.exit_codes == [0, 0]
    assert all(e.state == "idle" for e in await rack.desks.fabric.endpoints())


async def test_the_failure_of_one_rank_fails_the_job(rack: Rack) -> None:
    await submit(rack, "red", 3)
    await rack.state("red", "running")
    rack.engine.exit("red", 1, 137)
    await rack.state("red", "failed")
    red = rack.desks.jobs.job("red")
    assert red.reason == "rank 1 was ended by SIGKILL (exit code 137)"
    assert red.exit_codes[1] == 137
    assert ("stop", "red") in rack.engine.calls


async def test_pause_and_resume(rack: Rack) -> None:
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    assert (await rack.desks.jobs.pause("red")).state == "paused"
    assert rack.engine.states("red") == {RankState.PAUSED}
    with pytest.raises(ServiceError):
        await rack.desks.jobs.pause("red")
    assert (await rack.desks.jobs.resume("red")).state == "running"


async def test_a_job_paused_by_its_owner_stays_paused_after_a_regroup(rack: Rack) -> None:
    await scattered(rack)
    await rack.desks.jobs.pause("red")
    plan = await rack.desks.plans.make_plan(PlanRequest())
    assert (await rack.desks.plans.apply(plan, wait_s=60)).state == "committed"
    assert rack.engine.states("red") == {RankState.PAUSED}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1, "rank 1 of red exited with code 1 during its checkpoint"),
        (137, "rank 1 of red was killed after 30 s before its checkpoint ended"),
    ],
)
async def test_a_regroup_without_the_jobs_checkpoint_is_rolled_back(
    rack: Rack, code: int, words: str
) -> None:
    ends = ["gpu0", "gpu1", "gpu3", "gpu4"]
    await submit(rack, "red", 4, endpoints=ends, policy="restart", checkpoint_grace_s=30)
    await rack.state("red", "running")
    light = rack.aggregators.light()
    rack.engine.ends["red"] = {0: 0, 1: code, 2: 143}
    plan = await rack.desks.plans.make_plan(PlanRequest())
    done = await rack.desks.plans.apply(plan, wait_s=60)
    assert done.state == "rolled_back"
    assert words in done.error
    assert [p.name for p in done.phases] == ["admit", "quiesce", "resume back", "commit back"]
    assert rack.aggregators.light() == light
    red = rack.desks.jobs.job("red")
    assert (red.state, red.restarts, red.excess_span) == ("running", 1, 1)

    rack.engine.ends["red"] = {0: 0, 1: 0, 2: 143}
    plan = await rack.desks.plans.make_plan(PlanRequest())
    assert (await rack.desks.plans.apply(plan, wait_s=60)).state == "committed"


async def test_a_job_without_a_checkpoint_may_exit_with_any_code(rack: Rack) -> None:
    ends = ["gpu0", "gpu1", "gpu3", "gpu4"]
    await submit(rack, "red", 4, endpoints=ends, policy="restart")
    await rack.state("red", "running")
    rack.engine.ends["red"] = {1: 1}
    plan = await rack.desks.plans.make_plan(PlanRequest())
    assert (await rack.desks.plans.apply(plan, wait_s=60)).state == "committed"


async def test_the_restart_policy_starts_new_ranks(rack: Rack) -> None:
    ends = ["gpu0", "gpu2", "gpu1", "gpu3"]
    await submit(rack, "red", 4, endpoints=ends, policy="restart")
    await rack.state("red", "running")
    plan = await rack.desks.plans.make_plan(PlanRequest())
    assert (await rack.desks.plans.apply(plan, wait_s=60)).state == "committed"
    red = rack.desks.jobs.job("red")
    assert (red.state, red.restarts, red.excess_span) == ("running", 1, 0)
    assert rack.engine.calls[-2:] == [("stop", "red"), ("start", "red")]


async def test_a_live_job_runs_through_a_regroup(rack: Rack) -> None:
    await scattered(rack, Policy.LIVE)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    done = await rack.desks.plans.apply(plan, wait_s=60)
    assert done.state == "committed"
    assert ("freeze", "red") not in rack.engine.calls
    red = rack.desks.jobs.job("red")
    assert {r.endpoint: r.dark_time_s for r in red.ranks if r.dark_time_s} == {
        e: t for e, t in done.dark_time_s.items() if e in red.endpoints
    }


async def test_a_regroup_takes_at_most_two_durable_writes_per_phase(rack: Rack) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    before = rack.store.commits
    done = await rack.desks.plans.apply(plan, wait_s=60)
    assert rack.store.commits - before <= 2 * len(done.phases)


async def test_one_of_two_concurrent_plans_gets_a_conflict(rack: Rack) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    first = await rack.desks.plans.apply(plan, wait_s=0)
    with pytest.raises(ServiceError) as caught:
        await rack.desks.plans.apply(plan, wait_s=0)
    assert caught.value.code == "conflict"

    async def done() -> bool:
        return rack.desks.plans.transaction(first.id).state == "committed"

    await rack.until(done)


async def test_a_job_cancelled_during_admission_does_not_start(rack: Rack) -> None:
    """At any step of the queue: no container may outlive the cancel."""
    for turns in range(20):
        name = f"job-{turns}"
        await submit(rack, name, 2)
        await asyncio.sleep(queue.PAUSE_S)
        for _ in range(turns):
            await asyncio.sleep(0)
        await rack.desks.jobs.cancel(name)
    await asyncio.sleep(10.0)
    assert {job.state for job in await rack.desks.jobs.jobs()} == {"cancelled"}
    assert not rack.engine.statuses
    assert all(e.state == "idle" for e in await rack.desks.fabric.endpoints())


async def test_the_name_of_an_ended_job_can_be_reused(rack: Rack) -> None:
    await submit(rack, "red", 1)
    with pytest.raises(ServiceError) as caught:
        await submit(rack, "red", 1)
    assert caught.value.code == "conflict"
    await rack.desks.jobs.cancel("red")
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    assert rack.desks.jobs.job("red").count == 2


async def test_logs_and_live_figures(rack: Rack) -> None:
    await submit(rack, "red", 2, endpoints=["gpu0", "gpu2"], rank_order="placed")
    await rack.state("red", "running")
    lines = [line async for line in rack.desks.jobs.logs("red", rank=1, tail=None, follow=False)]
    assert [(line.rank, line.text) for line in lines] == [(1, "one"), (1, "two")]
    top = await rack.desks.jobs.top()
    assert [job.name for job in top.jobs] == ["red"]
    assert len(top.endpoints) == 6
    site = await rack.desks.fabric.site()
    assert site.uplinks[0].a == "as0/8"
    assert {c.endpoint for c in rack.desks.fabric.circuits()} == {e.name for e in site.endpoints}
    assert len(await rack.desks.jobs.containers()) == 2
    assert sum(node.containers for node in rack.desks.fabric.nodes()) == 2


async def test_an_ended_job_shows_the_logs_of_all_ranks_also_after_a_restart(rack: Rack) -> None:
    async def ranks() -> list[int]:
        logs = rack.desks.jobs.logs("red", rank=None, tail=None, follow=False)
        return [line.rank async for line in logs]

    await submit(rack, "red", 2, endpoints=["gpu0", "gpu2"], rank_order="placed")
    await rack.state("red", "running")
    await rack.desks.jobs.cancel("red")
    await rack.state("red", "cancelled")
    assert not rack.engine.statuses
    assert await ranks() == [0, 0, 1, 1]
    await rack.down()
    await rack.up()
    assert await ranks() == [0, 0, 1, 1]


async def test_a_restart_of_the_controller_keeps_all_state(rack: Rack) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    await rack.desks.plans.apply(plan, wait_s=60)
    before = rack.desks.jobs.job("red")
    epoch, circuits = rack.desks.epoch, list(rack.switch.circuits)
    calls = len(rack.engine.calls)
    await rack.down()
    await rack.up()
    await rack.state("red", "running")
    after = rack.desks.jobs.job("red")
    assert (after.endpoints, after.homes) == (before.endpoints, before.homes)
    assert rack.desks.epoch == epoch
    assert rack.switch.circuits == circuits
    assert len(rack.engine.calls) == calls
    events = rack.desks.fabric.events(0, 1000)
    assert [e.id for e in events] == sorted({e.id for e in events})


@pytest.mark.parametrize("pull", ["missing", "always"])
async def test_an_image_of_no_listed_registry_is_refused_at_submit(rack: Rack, pull: str) -> None:
    rack.engine.unlisted.add("10.0.0.7:22/x:1")
    with pytest.raises(ServiceError) as refused:
        await submit(rack, "red", 2, image="10.0.0.7:22/x:1", pull=pull)
    assert (refused.value.code, refused.value.object) == ("invalid", "image/10.0.0.7:22/x:1")
    assert "not listed" in refused.value.message
    assert await rack.desks.jobs.jobs() == []
