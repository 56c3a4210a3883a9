"""Our own circuits between two aggregators: kept, over restarts too, and their ports left alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from base.clock import SteadyClock
from controller.base.errors import ServiceError
from controller.devices.aggregators import AttachPoint, PortStatus
from controller.reconcile.drift_policy import DriftPolicy
from controller.schema.plans import PlanRequest
from controller.state.transactions import RunningTransaction
from controller.transaction.circuits import Cabling, SwitchChange
from controller.transaction.model import Cause, Outcome, Transaction
from controller.transaction.model import Path as PartRoute
from ocs_driver.base import ApplyResult, CircuitRequest
from scheduler.occupancy import capacities
from tests.parts.controller.emulated import KINDS, Kind, rack_on, told
from tests.parts.controller.jobs import scattered, submit
from tests.parts.controller.rack import Rack, crash

NEAR, FAR = AttachPoint("as0", 4), AttachPoint("as1", 4)
OBJECT = "uplink/as0-4~as1-4"


def lay(rack: Rack, owner: str = "lightloom") -> None:
    rack.switch.add("2.2.4", "2.1.4", owner)


def lies(rack: Rack) -> bool:
    return any({c.a, c.b} == {"2.1.4", "2.2.4"} for c in rack.switch.circuits)


def about(rack: Rack) -> list[str]:
    return [e.reason for e in rack.desks.fabric.events(0, 1000) if e.object == OBJECT]


@pytest.mark.parametrize("stop", [Rack.down, crash])
async def test_an_uplink_is_kept_and_its_ports_are_left_alone(tmp_path: Path, stop: object) -> None:
    rack = Rack(tmp_path)
    lay(rack)
    for life in range(3):
        await rack.up()
        assert rack.see.light.uplinks == {NEAR: FAR}
        assert rack.see.blocked_points() == {NEAR, FAR}
        assert capacities(rack.see.fabric()) == {("as0", "ocs0"): 3, ("as1", "ocs0"): 3}
        views = await rack.desks.fabric.aggregators()
        assert [view.size - view.used - view.free for view in views] == [0, 0]
        assert [view.used - len(view.endpoints) for view in views] == [1, 1]
        assert not rack.see.unavailable()
        assert (told(rack, "ForeignCircuit"), about(rack)) == ([], ["Adopted"])
        assert lies(rack)
        if life < 2:
            await stop(rack)  # type: ignore[operator]
    await scattered(rack)
    done = await rack.desks.plans.apply(await rack.desks.plans.make_plan(PlanRequest()), wait_s=60)
    assert (done.state, len(done.moves)) == ("committed", 2), "all with three ports each"
    with pytest.raises(ServiceError, match="no free port"):
        await rack.desks.plans.attach("gpu4", "as0", wait_s=60)
    assert lies(rack)
    await rack.down()


async def test_an_uplink_is_known_before_its_switch_is_read(tmp_path: Path) -> None:
    rack = Rack(tmp_path)
    lay(rack)
    await rack.up()
    await rack.down()
    rack.switch.away = True
    up = asyncio.create_task(rack.up())
    await asyncio.sleep(1)
    assert rack.see.blocked_points() == {NEAR, FAR}
    rack.switch.away = False
    await up
    await rack.down()


async def test_an_uplink_of_another_owner_stays_foreign(tmp_path: Path) -> None:
    rack = Rack(tmp_path)
    lay(rack, "other")
    await rack.up()
    assert rack.see.light.uplinks == {}
    assert rack.see.blocked_points() == {NEAR, FAR}
    assert len(told(rack, "ForeignCircuit")) == 1
    await rack.down()


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_an_uplink_stays_ours_when_the_list_of_own_circuits_is_lost(
    kind: Kind, tmp_path: Path
) -> None:
    async with rack_on(kind, tmp_path / "state") as rack:
        await rack.up()
        assert (await rack.switch.apply([], [CircuitRequest("2.1.4", "2.2.4")])).ok
        await rack.until(lambda: rack.see.light.uplinks == {NEAR: FAR})
        await rack.until(lambda: not rack.see.owes)
        await rack.down()
        for file in (tmp_path / "state" / "ocs").iterdir():
            file.unlink()
        await rack.up()
        assert rack.see.light.uplinks == {NEAR: FAR}
        assert (len(told(rack, "Reclaimed")), told(rack, "ForeignCircuit")) == (1, [])


@pytest.mark.parametrize("policy", DriftPolicy)
async def test_an_uplink_that_comes_and_goes(tmp_path: Path, policy: DriftPolicy) -> None:
    rack = Rack(tmp_path)
    await rack.up(drift=policy)
    lay(rack)
    await rack.parts.drift.check()
    assert rack.see.light.uplinks == ({} if policy is DriftPolicy.ALARM else {NEAR: FAR})
    assert rack.see.blocked_points() == {NEAR, FAR}
    assert about(rack)[0] == "CircuitDrift"
    rack.switch.circuits = [c for c in rack.switch.circuits if c.a != "2.2.4"]
    await rack.parts.drift.check()
    assert (rack.see.light.uplinks, rack.see.blocked_points()) == ({}, frozenset())
    assert told(rack, "ForeignCircuit") == []
    await submit(rack, "red", 6)
    await rack.state("red", "running")
    await rack.down()


async def test_an_uplink_on_the_port_of_a_job_is_adopted_and_the_job_moves(rack: Rack) -> None:
    await submit(rack, "red", 2, endpoints=["gpu0", "gpu1"])
    await rack.state("red", "running")
    rack.switch.circuits = [c for c in rack.switch.circuits if c.a != "1.1.1"]
    rack.switch.add("2.1.1", "2.2.4")  # gpu0 was at as0/1
    await rack.until(lambda: rack.see.light.uplinks == {AttachPoint("as0", 1): FAR})
    await rack.until(lambda: rack.see.light.attachments.get("gpu0") == NEAR)
    await rack.state("red", "running")


async def test_a_lost_carrier_of_an_uplink_is_reported(tmp_path: Path) -> None:
    rack = Rack(tmp_path)
    lay(rack)
    await rack.up()
    rack.aggregators.post(PortStatus("as1", 4, False))
    assert about(rack) == ["Adopted", "LinkDown"]
    await rack.down()


async def test_an_uplink_is_made_and_removed_by_a_transaction(rack: Rack) -> None:
    """The same phases as for an endpoint; it is proven by the carrier at both ends."""
    link = Cabling(rack.site).link(NEAR, FAR)
    assert link is not None
    made = await moved(rack, PartRoute(NEAR, None, FAR), SwitchChange("ocs0", (), (link,)))
    assert made.outcome is Outcome.COMMITTED
    assert lies(rack)
    assert [r.name for r in rack.switch.applied[-1][1]] == ["as0-4~as1-4"]
    assert rack.see.light.uplinks == {NEAR: FAR}
    await crash(rack)
    await rack.up()
    assert (rack.see.light.uplinks, about(rack)) == ({NEAR: FAR}, [])
    removed = await moved(rack, PartRoute(NEAR, FAR, None), SwitchChange("ocs0", (link,), ()))
    assert removed.outcome is Outcome.COMMITTED
    assert (lies(rack), rack.see.light.uplinks) == (False, {})


async def test_an_uplink_without_light_is_undone_and_its_port_not_used_again(rack: Rack) -> None:
    link = Cabling(rack.site).link(NEAR, FAR)
    assert link is not None
    rack.switch.dull.add((link.a, link.b))
    tried = await moved(rack, PartRoute(NEAR, None, FAR), SwitchChange("ocs0", (), (link,)))
    assert tried.outcome is Outcome.ROLLED_BACK
    assert tried.reasons == ("as0/4: no carrier on as1/4",)
    assert (lies(rack), rack.see.light.uplinks) == (False, {})
    assert list(rack.see.light.quarantine) == ["as1/4"]


async def test_a_restart_in_the_middle_keeps_an_uplink_as_it_is_found(rack: Rack) -> None:
    link = Cabling(rack.site).link(NEAR, FAR)
    assert link is not None
    apply, made = rack.switch.apply, asyncio.Event()

    async def made_and_dead(*asked: Any, **how: Any) -> ApplyResult:
        await apply(*asked, **how)
        made.set()
        await asyncio.Event().wait()
        raise AssertionError

    rack.switch.apply = made_and_dead  # type: ignore[method-assign]
    change = SwitchChange("ocs0", (), (link,))
    moving = asyncio.create_task(moved(rack, PartRoute(NEAR, None, FAR), change))
    await made.wait()
    moving.cancel()
    await crash(rack)
    rack.switch.apply = apply  # type: ignore[method-assign]
    await rack.up()
    assert rack.desks.plans.transaction("t2").state == "rolled_back"
    assert (lies(rack), rack.see.light.uplinks) == (True, {NEAR: FAR})
    assert rack.see.blocked_points() == {NEAR, FAR}


async def moved(rack: Rack, path: PartRoute, change: SwitchChange) -> Transaction:
    state = rack.parts.state
    state.transactions.number += 1
    ident = f"t{state.transactions.number}"
    tx = Transaction(ident, Cause.PLACEMENT, state.epoch, (path,), (change,))
    running = RunningTransaction(tx, None, SteadyClock(state.clock))
    state.transactions.running[ident] = running
    assert rack.see.blocked_points() == {NEAR, FAR}
    done = await rack.parts.mover.carry_out(running)
    assert rack.desks.plans.transaction(ident).moves == []
    return done
