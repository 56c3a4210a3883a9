"""Plans in batches, one transaction each: in order, across restarts, and stopped where needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from controller.base import failpoints
from controller.base.errors import ServiceError
from controller.devices.engine import RankState
from controller.fabric.mover import Mover
from controller.plans.rollout import BEGIN_S
from controller.schema.plans import PlanRequest, PlanView, RolloutRequest, RolloutView
from controller.state.kept.rollouts import KEPT_ROLLOUTS, ROLLOUTS, RolloutRecord, Rollouts
from controller.state.transactions import RunningTransaction
from controller.transaction.model import Transaction
from scheduler.policy.triggers import TriggerPolicy
from sitefile import RegroupPolicy, Scheduling, load_site
from tests.parts.controller.failpoints import Reaper
from tests.parts.controller.jobs import regrouper, submit
from tests.parts.controller.rack import Rack, crash
from tests.parts.sites import PAPER

RED, BLUE = ["gpu0", "gpu1", "gpu2"], ["gpu3", "gpu5", "gpu4"]
TOGETHER = {"gpu2": "as0", "gpu4": "as1"}
"""Each job has one endpoint under the other's aggregator, and each aggregator one free port."""


def site(**regroup: object) -> object:
    policy = RegroupPolicy(**regroup)  # type: ignore[arg-type]
    return replace(load_site(PAPER), scheduling=Scheduling(regroup=policy))


async def two_scattered(rack: Rack) -> None:
    for name, ends in (("red", RED), ("blue", BLUE)):
        await submit(rack, name, 3, endpoints=ends, rank_order="placed")
        await rack.state(name, "running")


async def planned(rack: Rack, **limits: object) -> PlanView:
    request = PlanRequest.model_validate({"max_dark": 1, **limits})
    return await rack.desks.plans.make_plan(request)


async def ended(rack: Rack, ident: str = "o1") -> RolloutView:
    async def over() -> bool:
        view = rack.desks.rollouts.rollout(ident)
        return view.state in ("committed", "stopped")

    await rack.until(over)
    return rack.desks.rollouts.rollout(ident)


async def homes(rack: Rack) -> dict[str, str | None]:
    return {e.name: e.home for e in await rack.desks.fabric.endpoints()}


async def still_scattered(rack: Rack) -> str:
    for name in ("red", "blue"):
        if rack.desks.jobs.job(name).span == 2:
            return name
    raise AssertionError("both jobs are together")


class Gate:
    """Holds a rollout after its first transaction, before it notes that it has committed."""

    def __init__(self, rack: Rack) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        mover = rack.parts.mover
        carry_out = mover.carry_out

        async def held(running: RunningTransaction) -> Transaction:
            tx = await carry_out(running)
            self.reached.set()
            await self.open.wait()
            return tx

        mover.carry_out = held  # type: ignore[method-assign]


@pytest_asyncio.fixture
async def two(rack: Rack) -> AsyncIterator[Rack]:
    await two_scattered(rack)
    yield rack


async def test_batches_are_transactions_one_after_the_other(two: Rack) -> None:
    plan = await planned(two)
    assert plan.batches is not None and not plan.circuits.make
    assert (plan.batches.batches, plan.batches.least, plan.batches.largest) == (2, 2, 1)
    assert plan.batches.pauses == {"red": 1, "blue": 1}
    begun = await two.service.desks.rollouts.begin(RolloutRequest(plan=plan))
    assert (begun.state, begun.batches, begun.done) == ("running", 2, 0)
    done = await ended(two)
    assert (done.state, done.done, done.result) == ("committed", 2, "every batch has committed")
    first, second = [
        tx for tx in two.service.desks.plans.transactions() if tx.id in done.transactions
    ]
    assert [len(first.moves), len(second.moves)] == [1, 1]
    assert first.finished_at is not None and first.finished_at <= second.started_at
    assert {first.plan_id, second.plan_id} == {plan.id}
    assert {e: h for e, h in (await homes(two)).items() if e in TOGETHER} == TOGETHER
    for name in ("red", "blue"):
        job = two.service.desks.jobs.job(name)
        assert (job.span, job.pauses) == (1, 1)
    told = [e.reason for e in two.service.desks.fabric.events(0, 1000) if "rollout" in e.object]
    assert told == ["RolloutStarted", "RolloutCommitted"]


async def test_limits_come_from_the_request_then_the_plan(two: Rack) -> None:
    plan = await planned(two)
    begun = await two.service.desks.rollouts.begin(RolloutRequest(plan=plan, max_dark=2))
    assert (begun.batches, begun.max_dark) == (1, 2)
    assert (await ended(two)).state == "committed"


async def test_without_any_limit_a_rollout_is_refused(two: Rack) -> None:
    plan = await two.service.desks.plans.make_plan(PlanRequest())
    assert plan.batches is None
    with pytest.raises(ServiceError) as caught:
        await two.service.desks.rollouts.begin(RolloutRequest(plan=plan))
    assert (caught.value.code, caught.value.object) == ("invalid", f"plan/{plan.id}")
    assert "--max-dark" in caught.value.hint


async def test_one_rollout_at_a_time(two: Rack) -> None:
    gate = Gate(two)
    plan = await planned(two)
    await two.service.desks.rollouts.begin(RolloutRequest(plan=plan))
    await gate.reached.wait()
    with pytest.raises(ServiceError) as caught:
        await two.service.desks.rollouts.begin(RolloutRequest(plan=await planned(two)))
    assert caught.value.code == "conflict"
    assert "rollout o1 is under way: batch 1 of 2" in caught.value.message
    gate.open.set()
    assert (await ended(two)).state == "committed"


async def test_no_further_batch_begins_after_an_abort(two: Rack) -> None:
    gate = Gate(two)
    await two.service.desks.rollouts.begin(RolloutRequest(plan=await planned(two)))
    await gate.reached.wait()
    view = await two.service.desks.rollouts.abort("o1")
    assert view.state == "stopping"
    gate.open.set()
    done = await ended(two)
    assert (done.state, done.done, len(done.transactions)) == ("stopped", 1, 1)
    assert done.result == "an operator stopped it; 1 of 2 batches have committed"
    spans = {two.service.desks.jobs.job(name).span for name in ("red", "blue")}
    assert spans == {1, 2}
    with pytest.raises(ServiceError) as caught:
        await two.service.desks.rollouts.abort("o1")
    assert caught.value.code == "conflict"


async def test_an_abort_that_the_store_refuses_stops_nothing(two: Rack) -> None:
    gate = Gate(two)
    await two.service.desks.rollouts.begin(RolloutRequest(plan=await planned(two)))
    await gate.reached.wait()
    two.disk.fault = "full"
    with pytest.raises(ServiceError):
        await two.service.desks.rollouts.abort("o1")
    two.disk.release()
    assert two.service.desks.rollouts.rollout("o1").state == "running"
    gate.open.set()
    done = await ended(two)
    assert (done.state, done.done) == ("committed", 2)


@pytest.mark.parametrize("asked", [False, True], ids=["goes on", "was to stop"])
async def test_a_restart_between_batches(two: Rack, *, asked: bool) -> None:
    """The first batch has committed, and the rollout has not noted that: the homes tell."""
    gate = Gate(two)
    await two.service.desks.rollouts.begin(RolloutRequest(plan=await planned(two)))
    await gate.reached.wait()
    if asked:
        await two.service.desks.rollouts.abort("o1")
    await two.down()
    await two.up()
    done = await ended(two)
    if asked:
        assert (done.state, len(done.transactions)) == ("stopped", 1)
        return
    assert (done.state, done.done, len(done.transactions)) == ("committed", 2, 2)
    for name in ("red", "blue"):
        job = two.service.desks.jobs.job(name)
        assert (job.span, job.pauses) == (1, 1)


async def test_a_death_at_every_failpoint_leaves_it_whole(tmp_path: Path) -> None:
    """The next controller finishes it, and pauses each job once more at most for its own death."""
    at, died = 0, True
    while died:
        at += 1
        folder = tmp_path / str(at)
        folder.mkdir()
        rack = Rack(folder)
        await rack.up()
        await two_scattered(rack)
        plan = await planned(rack)
        with failpoints.hooked(reaper := Reaper(at)):
            await rack.desks.rollouts.begin(RolloutRequest(plan=plan))
            life = asyncio.create_task(ended(rack))
            death = asyncio.create_task(reaper.died.wait())
            await asyncio.wait({life, death}, return_when=asyncio.FIRST_COMPLETED)
            for task in (life, death):
                task.cancel()
            await asyncio.gather(life, death, return_exceptions=True)
            await crash(rack)
        died = reaper.died.is_set()
        await rack.up()
        point = reaper.passed[-1]
        assert (await ended(rack)).state == "committed", point
        for name in ("red", "blue"):
            await rack.state(name, "running")
            job = rack.desks.jobs.job(name)
            assert (job.span, job.restarts) == (1, 0), point
            assert job.pauses <= 2, point
            assert rack.engine.states(name) == {RankState.RUNNING}, point
        await rack.down()
    assert reaper.passed.count("switch.after") == 2


async def test_the_end_survives_a_restart(two: Rack) -> None:
    await two.service.desks.rollouts.begin(RolloutRequest(plan=await planned(two)))
    before = await ended(two)
    await two.down()
    await two.up()
    assert two.service.desks.rollouts.rollouts() == [before]
    again = await two.service.desks.plans.make_plan(PlanRequest())
    assert again.empty


async def test_a_job_that_ends_between_batches_stops_it(two: Rack) -> None:
    gate = Gate(two)
    await two.service.desks.rollouts.begin(RolloutRequest(plan=await planned(two)))
    await gate.reached.wait()
    left = await still_scattered(two)
    await two.service.desks.jobs.cancel(left)
    await two.state(left, "cancelled")
    gate.open.set()
    done = await ended(two)
    assert (done.state, done.done) == ("stopped", 1)
    assert done.result.startswith(f"job {left} no longer holds gpu")


async def test_another_job_of_the_same_name_stops_it(two: Rack) -> None:
    gate = Gate(two)
    await two.service.desks.rollouts.begin(RolloutRequest(plan=await planned(two)))
    await gate.reached.wait()
    left = await still_scattered(two)
    await two.service.desks.jobs.cancel(left)
    await two.state(left, "cancelled")
    ends = RED if left == "red" else BLUE
    await submit(two, left, 3, endpoints=ends, rank_order="placed")
    await two.state(left, "running")
    gate.open.set()
    done = await ended(two)
    assert (done.state, done.done) == ("stopped", 1)


async def test_a_batch_that_is_rolled_back_stops_it(two: Rack) -> None:
    """No light at the new port: the jobs are where they were, and nothing else begins."""
    before = await homes(two)
    two.switch.refused.update(port for port in _ports(two))
    await two.service.desks.rollouts.begin(RolloutRequest(plan=await planned(two)))
    done = await ended(two)
    assert (done.state, done.done, len(done.transactions)) == ("stopped", 0, 1)
    assert "ended rolled_back" in done.result
    assert await homes(two) == before


def _ports(rack: Rack) -> set[str]:
    """Return the switch's ports to which the free fibers of the aggregators lead."""
    used = {circuit.b for circuit in rack.switch.circuits} | {c.a for c in rack.switch.circuits}
    fibers = {f.port for a in rack.site.aggregators for f in a.fibers.values()}
    return fibers - used


async def test_one_that_breaks_blocks_no_other(two: Rack) -> None:
    plan, mover = await planned(two), two.parts.mover

    async def broken(running: RunningTransaction) -> Transaction:
        mover.call_off(running, "broken")
        raise RuntimeError("broken")

    whole, mover.carry_out = mover.carry_out, broken  # type: ignore[method-assign]
    await two.service.desks.rollouts.begin(RolloutRequest(plan=plan))
    done = await ended(two)
    assert (done.state, done.result[:22]) == ("stopped", "internal error: broken")
    mover.carry_out = whole  # type: ignore[method-assign]
    begun = await two.service.desks.rollouts.begin(RolloutRequest(plan=plan))
    assert (await ended(two, begun.id)).state == "committed"


async def test_nothing_begins_without_a_store(two: Rack) -> None:
    plan = await planned(two)
    two.disk.fault = "full"
    with pytest.raises(ServiceError) as caught:
        await two.service.desks.rollouts.begin(RolloutRequest(plan=plan))
    assert caught.value.code == "failed"
    two.disk.release()
    assert two.service.desks.rollouts.rollouts() == []
    assert not two.see.jobs.promised
    begun = await two.service.desks.rollouts.begin(RolloutRequest(plan=plan))
    assert (await ended(two, begun.id)).state == "committed"


async def test_a_batch_waits_for_a_device_and_then_gives_up(two: Rack) -> None:
    gate = Gate(two)
    await two.service.desks.rollouts.begin(RolloutRequest(plan=await planned(two)))
    await gate.reached.wait()
    two.parts.state.command_lost = "another controller commands"
    gate.open.set()
    await asyncio.sleep(BEGIN_S)
    done = await ended(two)
    assert (done.state, done.done) == ("stopped", 1)
    assert "could not begin within 60 s" in done.result


async def test_idle_endpoints_that_move_are_kept_from_the_queue(rack: Rack) -> None:
    """The endpoint that makes room later is not given to a job in between."""
    await submit(rack, "red", 4, endpoints=["gpu0", "gpu1", "gpu2", "gpu3"], rank_order="placed")
    await rack.state("red", "running")
    plan = await rack.desks.plans.make_plan(PlanRequest())
    idle = {move.endpoint for move in plan.moves} & {"gpu4", "gpu5"}
    assert idle  # as0 has one free port, and two of red come
    gate = Gate(rack)
    begun = await rack.desks.rollouts.begin(
        RolloutRequest(plan=plan, max_dark=2, max_pauses=2, park=True)
    )
    await gate.reached.wait()
    reserved = rack.see.jobs.promised_endpoints()
    await submit(rack, "two", 2)
    await asyncio.sleep(5)
    assert reserved and rack.desks.jobs.job("two").state == "pending"
    gate.open.set()
    assert (await ended(rack, begun.id)).state == "committed"
    await rack.state("two", "running")


@pytest.mark.parametrize("restart", [False, True])
async def test_room_for_a_waiting_job_is_kept_until_the_end(
    rack: Rack, monkeypatch: pytest.MonkeyPatch, *, restart: bool
) -> None:
    """The endpoints that a rollout frees go to the job it was made for, not to a later one."""
    begin, may_begin = Mover.begin, asyncio.Event()

    def held(mover: Mover, *given: Any) -> RunningTransaction:
        if not may_begin.is_set():
            raise ServiceError("unavailable", "a switch does not answer")
        return begin(mover, *given)

    await submit(rack, "red", 2, endpoints=["gpu0", "gpu2"], rank_order="placed")
    await rack.state("red", "running")
    await submit(rack, "blue", 4, locality="strict")

    async def planned_for() -> bool:
        return rack.desks.jobs.job("blue").reason != ""

    await rack.until(planned_for)
    plan = await planned(rack, job="blue", max_dark=2)
    assert plan.makes_room_for == "blue"
    monkeypatch.setattr(Mover, "begin", held)
    begun = await rack.desks.rollouts.begin(RolloutRequest(plan=plan))
    assert begun.makes_room_for == "blue"
    await submit(rack, "later", 2)
    if restart:
        await rack.down()
        await rack.up()
    await asyncio.sleep(10)
    assert len(rack.see.jobs.promised["blue"]) == 4
    assert rack.desks.jobs.job("later").state == "pending"
    may_begin.set()
    assert (await ended(rack)).state == "committed"
    await rack.state("blue", "running")
    assert rack.desks.jobs.job("blue").span == 1
    assert rack.desks.jobs.job("later").state == "pending"
    assert not rack.see.jobs.promised


async def test_idle_endpoints_alone_are_not_moved_in_batches(two: Rack) -> None:
    with pytest.raises(ServiceError) as caught:
        await planned(two, homes={"gpu0": "as0"})
    assert (caught.value.code, caught.value.hint) == ("invalid", "leave out max_dark")


async def test_a_plan_without_an_order_names_what_would_help(rack: Rack) -> None:
    await submit(rack, "red", 4, endpoints=["gpu0", "gpu1", "gpu2", "gpu3"], rank_order="placed")
    await rack.state("red", "running")
    with pytest.raises(ServiceError) as caught:
        await planned(rack)
    assert caught.value.code == "conflict"
    assert "at most 1 endpoints dark at once: red would take 3" in caught.value.message
    assert "allow 3 endpoints dark at once" in caught.value.hint


async def test_more_pauses_than_the_plan_says_are_refused(two: Rack) -> None:
    plan = await planned(two)
    assert plan.batches is not None
    stated = plan.batches.model_copy(update={"pauses": {"red": 0, "blue": 0}})
    with pytest.raises(ServiceError) as caught:
        await two.service.desks.rollouts.begin(
            RolloutRequest(plan=plan.model_copy(update={"batches": stated}))
        )
    assert "would be paused 1 times, the plan says 0" in caught.value.message
    assert "--max-pauses 1" in caught.value.hint
    allowed = RolloutRequest(plan=plan.model_copy(update={"batches": stated}), max_pauses=1)
    await two.service.desks.rollouts.begin(allowed)
    assert (await ended(two)).state == "committed"


async def test_the_sites_limit_holds_for_every_plan(tmp_path: Path) -> None:
    rack = Rack(tmp_path, site(max_dark=1))  # type: ignore[arg-type]
    await rack.up()
    try:
        await two_scattered(rack)
        plan = await rack.desks.plans.make_plan(PlanRequest())
        assert plan.batches is not None and plan.batches.batches == 2
        with pytest.raises(ServiceError) as caught:
            await rack.desks.plans.apply(plan, wait_s=0)
        assert caught.value.hint == "carry it out in batches: lightloom apply --max-dark 1"
        await rack.desks.rollouts.begin(RolloutRequest(plan=plan))
        assert (await ended(rack)).state == "committed"
    finally:
        await rack.down()


async def test_triggers_carry_plans_out_in_batches(tmp_path: Path) -> None:
    triggers = TriggerPolicy(excess_span=1, excess_for_s=0.0, min_interval_s=0.05)
    rack = Rack(tmp_path, site(max_dark=1))  # type: ignore[arg-type]
    await rack.up()
    try:
        await two_scattered(rack)
        await rack.until(lambda: not rack.see.searches)
        assert await regrouper(rack, triggers).check_triggers() is not None
        assert (await ended(rack)).state == "committed"
        told = [e.message for e in rack.desks.fabric.events(0, 1000)]
        assert any("rollout o1 carries out plan" in text for text in told)
    finally:
        await rack.down()


def test_the_oldest_ended_ones_are_forgotten() -> None:
    kept = Rollouts(ROLLOUTS)
    for _ in range(KEPT_ROLLOUTS + 3):
        ident = kept.next_key()
        state = "running" if ident == "o1" else "committed"
        kept.put(
            RolloutRecord(
                id=ident,
                plan_id="p",
                state=state,  # type: ignore[arg-type]
                total=1,
                least=1,
                max_dark=1,
                started_at=0.0,
            )
        )
    assert kept.surplus() == ("o2", "o3")
