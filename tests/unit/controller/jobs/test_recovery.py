"""The controller dies in the middle of a regroup: the next one commits it or rolls it back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentlink.ranks import RankSpec
from controller.devices.engine import RankState, RankStatus
from controller.schema.plans import (
    CircuitChangesView,
    MoveView,
    PlanRequest,
)
from controller.store.store import Store
from ocs_driver.base import ApplyResult, CircuitRequest, Mode
from tests.parts.controller.jobs import plan_and_begin, submit
from tests.parts.controller.rack import Rack, crash
from tests.parts.controller.switch import FakeOcs


def hang(switch: FakeOcs, *, after: bool) -> asyncio.Event:
    """Let the switch hang before or after its next operation; the event is set when it does."""
    reached, apply = asyncio.Event(), switch.apply

    async def stuck(
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        mode: Mode = Mode.SAFE,
        deadline_s: float = 10.0,
    ) -> ApplyResult:
        if after:
            await apply(delete, make, mode=mode, deadline_s=deadline_s)
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError

    switch.apply = stuck  # type: ignore[method-assign]
    return reached


async def restart(rack: Rack) -> None:
    """Start a controller over a switch that has the same circuits and does not hang."""
    circuits = rack.switch.circuits
    rack.switch = FakeOcs()
    rack.switch.circuits = circuits
    await rack.up()


async def died_in_switch(rack: Rack, *, after: bool) -> None:
    reached = hang(rack.switch, after=after)
    before = {e.name: e.home for e in await rack.desks.fabric.endpoints()}
    await plan_and_begin(rack)
    await asyncio.wait_for(reached.wait(), 60)
    assert rack.engine.states("red") == {RankState.PAUSED}
    await crash(rack)
    await restart(rack)

    async def recovered() -> bool:
        return rack.desks.plans.transaction("t2").state == "rolled_back"

    await rack.until(recovered)
    assert {e.name: e.home for e in await rack.desks.fabric.endpoints()} == before
    assert {e: at.aggregator for e, at in rack.aggregators.light().items()} == before
    for job in ("red", "blue"):
        assert rack.desks.jobs.job(job).state == "running"
        assert rack.engine.states(job) == {RankState.RUNNING}


async def test_died_before_the_light_moved(rack: Rack) -> None:
    await died_in_switch(rack, after=False)


async def test_died_after_the_light_moved_and_before_it_was_proven(rack: Rack) -> None:
    await died_in_switch(rack, after=True)


async def test_died_after_the_paths_were_proven(rack: Rack) -> None:
    reached = asyncio.Event()

    async def never(job: str) -> None:
        reached.set()
        await asyncio.Event().wait()

    rack.engine.thaw = never  # type: ignore[method-assign]
    plan = await plan_and_begin(rack)
    await asyncio.wait_for(reached.wait(), 60)
    await crash(rack)
    del rack.engine.thaw
    await rack.up()

    async def recovered() -> bool:
        return rack.desks.plans.transaction("t2").state == "committed"

    await rack.until(recovered)
    assert {e.name: e.home for e in await rack.desks.fabric.endpoints()} == plan.homes_after
    for job in ("red", "blue"):
        assert rack.engine.states(job) == {RankState.RUNNING}


async def test_job_that_was_starting_queues_again(rack: Rack) -> None:
    reached = asyncio.Event()

    async def never(ranks: object, deadline_s: float) -> None:
        reached.set()
        await asyncio.Event().wait()

    rack.engine.start = never  # type: ignore[method-assign, assignment]
    await submit(rack, "red", 2)
    await asyncio.wait_for(reached.wait(), 60)
    await crash(rack)
    del rack.engine.start
    await rack.up()
    await rack.state("red", "running")


async def test_stop_lets_a_transaction_end(rack: Rack) -> None:
    await plan_and_begin(rack)
    await rack.down()
    await rack.up()
    assert rack.desks.plans.transaction("t2").state == "committed"
    assert rack.engine.states("red") == {RankState.RUNNING}


async def test_light_that_moved_while_the_controller_was_away(rack: Rack) -> None:
    """A running job's light is moved back; an idle endpoint stays where it is found."""
    await submit(rack, "red", 2, endpoints=["gpu0", "gpu1"])
    await rack.state("red", "running")
    await rack.down()
    rack.switch.circuits = [c for c in rack.switch.circuits if c.a not in ("1.1.1", "1.1.6")]
    rack.switch.add("1.1.1", "2.2.4")  # gpu0 of red, now under as1
    rack.switch.add("1.1.6", "2.1.4")  # idle gpu5, now under as0
    await rack.up()
    homes = {e.name: e.home for e in await rack.desks.fabric.endpoints()}
    assert (homes["gpu0"], homes["gpu5"]) == ("as0", "as0")
    assert rack.engine.states("red") == {RankState.RUNNING}


async def test_containers_of_a_restarted_job_never_have_an_unknown_epoch(rack: Rack) -> None:
    """The controller dies when the ranks of a new epoch run, and before the job is written."""
    await submit(rack, "red", 4, endpoints=["gpu0", "gpu2", "gpu1", "gpu3"], policy="restart")
    await rack.state("red", "running")
    plan = await rack.desks.plans.make_plan(PlanRequest())
    reached, start = asyncio.Event(), rack.engine.start

    async def started_and_gone(ranks: list[RankSpec], deadline_s: float) -> list[RankStatus]:
        await start(ranks, deadline_s)
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError

    rack.engine.start = started_and_gone  # type: ignore[method-assign, assignment]
    await rack.desks.plans.apply(plan, wait_s=0)
    await asyncio.wait_for(reached.wait(), 60)
    epochs = {status.epoch for status in rack.engine.statuses.values()}
    await crash(rack)
    kept = Store(rack.state_dir / "controller.sqlite")
    assert int((await kept.load()).facts["epoch"]) >= max(epochs)
    await kept.close()
    rack.engine.start = start  # type: ignore[method-assign]
    await rack.up()
    await rack.until(lambda: not rack.see.interrupted)
    await rack.state("red", "running")
    assert {s.epoch for s in rack.engine.statuses.values()} == {rack.desks.epoch}


async def test_an_endpoint_that_a_rolled_back_regroup_had_lit_is_dark_again(rack: Rack) -> None:
    """Else it keeps the port that another endpoint needs on its way back, and nothing moves."""
    await rack.desks.plans.attach("gpu0", None, wait_s=60)
    await rack.desks.plans.attach("gpu4", "as1", wait_s=60)
    before = {e.name: e.home for e in await rack.desks.fabric.endpoints()}
    assert list(before.values()).count("as1") == 4, "as1 is full"
    reached = hang(rack.switch, after=True)
    moves = {"gpu0": "as1", "gpu1": "as1", "gpu2": "as0", "gpu3": "as0", "gpu4": "as0"}
    plan = await rack.desks.plans.make_plan(PlanRequest())
    edited = plan.model_copy(
        update={
            "moves": [
                MoveView(endpoint=e, source=before[e], target=home) for e, home in moves.items()
            ],
            "homes_after": {**before, **moves},
            "circuits": CircuitChangesView(break_=[], make=[]),
            "basis": None,
        }
    )
    await rack.desks.plans.apply(edited, wait_s=0)
    await asyncio.wait_for(reached.wait(), 60)
    await crash(rack)
    await restart(rack)
    await rack.until(lambda: not rack.see.interrupted)
    assert {e.name: e.home for e in await rack.desks.fabric.endpoints()} == before
    light = {e: at.aggregator for e, at in rack.aggregators.light().items()}
    assert light == {e: home for e, home in before.items() if home}
