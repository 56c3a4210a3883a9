"""The controller dies in the middle of a regroup: the next one commits it or rolls it back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from controller.devices.engine import RankState
from controller.schema.plans import PlanRequest, PlanView
from ocs_driver.base import ApplyResult, CircuitRequest, Mode
from tests.unit.controller.fakes import FakeOcs, Rack
from tests.unit.controller.service.test_service import scattered, submit


async def crash(rack: Rack) -> None:
    """Stop the controller without any cleanup, as SIGKILL does."""
    await rack.service._tasks.stop()
    await rack.service._switches.stop()
    rack.disk.release()  # pending writes complete, and the next controller has a healthy disk
    await rack.store.close()


async def plan_and_begin(rack: Rack) -> PlanView:
    await scattered(rack)
    plan = await rack.service.commands.make_plan(PlanRequest())
    await rack.service.commands.apply(plan, wait_s=0)
    return plan


class Stuck(FakeOcs):
    """Hangs before or after an operation: the controller dies while it waits."""

    def __init__(self, inner: FakeOcs, *, after: bool) -> None:
        super().__init__()
        self.circuits = inner.circuits
        self.after = after
        self.reached = asyncio.Event()

    async def apply(
        self,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        mode: Mode = Mode.SAFE,
        deadline_s: float = 10.0,
    ) -> ApplyResult:
        if self.after:
            await super().apply(delete, make, mode=mode, deadline_s=deadline_s)
        self.reached.set()
        await asyncio.Event().wait()
        raise AssertionError


async def restart(rack: Rack, circuits: FakeOcs) -> None:
    rack.switch = FakeOcs()
    rack.switch.circuits = circuits.circuits
    await rack.up()


async def died_in_switch(rack: Rack, *, after: bool) -> None:
    stuck = Stuck(rack.switch, after=after)
    rack.service._switches._switches["ocs0"].driver = stuck
    before = {e.name: e.home for e in await rack.service.queries.endpoints()}
    await plan_and_begin(rack)
    await asyncio.wait_for(stuck.reached.wait(), 60)
    assert rack.engine.states("red") == {RankState.PAUSED}
    await crash(rack)
    await restart(rack, stuck)

    async def recovered() -> bool:
        return (await rack.service.queries.transaction("t2")).state == "rolled_back"

    await rack.until(recovered)
    assert {e.name: e.home for e in await rack.service.queries.endpoints()} == before
    assert {e: at.aggregator for e, at in rack.aggregators.light().items()} == before
    for job in ("red", "blue"):
        assert (await rack.service.queries.job(job)).state == "running"
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
        return (await rack.service.queries.transaction("t2")).state == "committed"

    await rack.until(recovered)
    assert {e.name: e.home for e in await rack.service.queries.endpoints()} == plan.homes_after
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
    assert (await rack.service.queries.transaction("t2")).state == "committed"
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
    homes = {e.name: e.home for e in await rack.service.queries.endpoints()}
    assert (homes["gpu0"], homes["gpu5"]) == ("as0", "as0")
    assert rack.engine.states("red") == {RankState.RUNNING}
