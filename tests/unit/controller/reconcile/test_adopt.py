"""Adoption of circuits during other events: moves, manual changes, a failing disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.base.errors import ServiceError
from controller.devices.aggregators import AttachPoint
from controller.people.projects import SharedProjects
from controller.schema.plans import PlanRequest
from controller.state.intend.keys import ATTACHMENTS
from controller.state.records import Quarantine
from controller.state.state import Reachability, State
from controller.state.writes import Loaded
from controller.store.store import Store
from controller.transaction import circuits
from controller.transaction.circuits import EndpointEnd, of_endpoints
from ocs_driver.base import ApplyResult, CircuitRequest
from sitefile import CabledSite
from tests.parts.controller.jobs import scattered, submit
from tests.parts.controller.rack import Rack, crash


class Cut:
    """Wraps the switch: it deletes circuits at once, and makes none until ``go`` is set."""

    def __init__(self, rack: Rack) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self._apply = rack.switch.apply
        rack.switch.apply = self  # type: ignore[method-assign, assignment]

    async def __call__(
        self, delete: Sequence[CircuitRequest], make: Sequence[CircuitRequest], **how: Any
    ) -> ApplyResult:
        await self._apply(delete, (), **how)
        self.reached.set()
        await self.go.wait()
        return await self._apply(delete, make, **how)


async def durable(rack: Rack) -> dict[str, AttachPoint]:
    await rack.parts.state.record(ATTACHMENTS)
    other = Store(rack.state_dir / "controller.sqlite")
    try:
        return dict((await other.load()).attachments)
    finally:
        await other.close()


@pytest.mark.parametrize("ends", ["committed", "rolled_back"])
async def test_a_port_that_is_taken_while_its_endpoint_moves_away(
    rack: Rack, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port is recorded as gpu0's until its move is proven; a port never has two endpoints."""
    cut = Cut(rack)
    moving = await rack.desks.plans.attach("gpu0", "as1", wait_s=0)
    await asyncio.wait_for(cut.reached.wait(), 30)
    rack.switch.circuits = [c for c in rack.switch.circuits if c.a != "1.1.6"]
    rack.switch.add("1.1.6", "2.1.1")  # gpu5, now where gpu0 was
    await rack.desks.drift.repair("ocs0")
    state = rack.see
    assert state.light.attachments["gpu5"] == AttachPoint("as0", 1)
    assert (await durable(rack)) == state.light.attachments
    if ends == "rolled_back":
        rack.switch.refused = {f"2.2.{port}" for port in range(1, 5)}
        busy = rack.switch.make

        def make(request: CircuitRequest) -> Any:
            taken = {p for c in rack.switch.circuits for p in (c.a, c.b)}
            if {request.a, request.b} & taken:
                rack.switch.refused.add(request.b)
            return busy(request)

        monkeypatch.setattr(rack.switch, "make", make)
    cut.go.set()

    async def over() -> bool:
        return rack.desks.plans.transaction(moving.id).finished_at is not None

    await rack.until(over)
    await rack.until(lambda: not state.transactions.running)
    assert len(set(state.light.attachments.values())) == len(state.light.attachments)
    assert (await durable(rack)) == state.light.attachments
    await rack.desks.drift.repair("ocs0")
    assert rack.aggregators.light() == state.light.attachments
    assert not state.store_error


async def test_an_adoption_that_could_not_be_saved_is_saved_later(rack: Rack) -> None:
    """The flows follow then, without another reading of the switch."""
    rack.switch.circuits = [c for c in rack.switch.circuits if c.a != "1.1.6"]
    rack.switch.add("1.1.6", "2.1.4")
    rack.disk.fault = "full"
    with pytest.raises(ServiceError, match="disk is full"):
        await rack.desks.drift.repair("ocs0")
    assert rack.desks.health.health().status == "degraded"
    installed = len(rack.aggregators.history)
    rack.disk.release()
    await rack.until(rack.whole)
    assert len(rack.aggregators.history) > installed
    assert rack.see.light.attachments["gpu5"] == AttachPoint("as0", 4)
    assert (await durable(rack))["gpu5"] == AttachPoint("as0", 4)


async def test_endpoints_that_a_recovery_owes_are_not_adopted_where_they_are_found(
    rack: Rack,
) -> None:
    """All old places or all new ones, never a mix, even if the switch is read in between."""
    await scattered(rack)
    before = {e: at.aggregator for e, at in rack.aggregators.light().items()}
    plan = await rack.desks.plans.make_plan(PlanRequest())
    moved = asyncio.Event()
    apply = rack.switch.apply

    async def moved_and_dead(*asked: Any, **how: Any) -> ApplyResult:
        await apply(*asked, **how)
        moved.set()
        await asyncio.Event().wait()
        raise AssertionError

    rack.switch.apply = moved_and_dead  # type: ignore[method-assign]
    await rack.desks.plans.apply(plan, wait_s=0)
    await asyncio.wait_for(moved.wait(), 30)
    await crash(rack)
    rack.switch.apply = apply  # type: ignore[method-assign]
    state_of = rack.aggregators_kind.connected
    away = {"as0", "as1"}
    rack.aggregators_kind = type(
        "Away", (rack.aggregators_kind,), {"connected": lambda self: state_of(self) - away}
    )
    up = asyncio.create_task(rack.up())
    await asyncio.sleep(0)
    await rack.until(lambda: rack.see.ready and rack.see.light.foreign_points)
    state = rack.parts.state
    state.light.quarantine.put(Quarantine("gpu5", "a test", 0.0))
    await rack.desks.quarantine.release("gpu5")
    await rack.desks.drift.repair("ocs0")
    away.clear()
    await up

    async def recovered() -> bool:
        return rack.desks.plans.transaction("t2").state == "rolled_back"

    await rack.until(recovered)
    assert {e: at.aggregator for e, at in rack.aggregators.light().items()} == before


async def test_an_endpoint_that_cannot_be_moved_back_yet_does_not_delay_others(rack: Rack) -> None:
    """Two endpoints lost their light, and the job of one is just starting."""
    start, go = rack.engine.start, asyncio.Event()

    async def later(*asked: Any) -> Any:
        await go.wait()
        return await start(*asked)

    rack.engine.start = later  # type: ignore[method-assign]
    await submit(rack, "red", 1, endpoints=["gpu0"])
    await rack.state("red", "starting")
    rack.switch.circuits = [c for c in rack.switch.circuits if c.a not in ("1.1.1", "1.1.5")]
    await rack.desks.drift.repair("ocs0")
    await rack.until(lambda: "gpu4" in rack.aggregators.light())
    assert "gpu0" not in rack.aggregators.light()
    go.set()
    await rack.until(lambda: "gpu0" in rack.aggregators.light())


async def test_an_endpoint_without_a_port_does_not_hold_up_others(rack: Rack) -> None:
    """Others have taken the last ports of gpu2's home, so gpu2 stays dark."""
    desks, adopter = rack.desks, rack.parts.adopter
    await desks.plans.attach("gpu2", None, wait_s=60)
    for taker in ("gpu0", "gpu1"):
        await desks.plans.attach(taker, "as1", wait_s=60)
    await desks.plans.attach("gpu4", None, wait_s=60)
    adopter._wanted.update({"gpu2": "as1", "gpu4": "as0"})
    await rack.until(lambda: "gpu4" in rack.aggregators.light())
    await rack.until(lambda: not rack.see.dark())
    assert "gpu2" not in rack.aggregators.light()


async def test_circuits_are_not_computed_once_for_each_endpoint_without_a_port(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All endpoints of as0 go dark, and only one of its ports is left."""
    dark = [e for e, at in rack.aggregators.light().items() if at.aggregator == "as0"]
    assert len(dark) >= 3
    taken = [f"as0/{port}" for port in sorted(rack.site.aggregator("as0").fibers)[1:]]
    for port in taken:
        rack.parts.state.light.quarantine.put(Quarantine(port, "its laser is weak", 0.0))
    rack.switch.circuits = [c for c in rack.switch.circuits if not c.b.startswith("2.1.")]
    computed = list[int]()

    class Counted(circuits.Cabling):
        def __init__(self, site: CabledSite) -> None:
            computed.append(1)
            super().__init__(site)

    monkeypatch.setattr(rack.parts.adopter, "repair", no_repair)
    await rack.desks.drift.repair("ocs0")
    monkeypatch.undo()
    monkeypatch.setattr(circuits, "Cabling", Counted)
    await rack.parts.adopter.repair()
    monkeypatch.undo()
    assert len(set(rack.see.dark()) & set(dark)) == len(dark) - 1
    # All of them at once, which fails; what can move; and that when it begins.
    assert len(computed) <= 3


async def no_repair() -> None:
    """Leave the endpoints where they are."""


async def test_a_port_has_one_endpoint_and_a_cable_moves_with_the_site_file(
    rack: Rack, tmp_path: Path
) -> None:
    site = rack.site
    as0, *others = site.aggregators
    wired = replace(as0, fixed={9: "gpu4"})
    again = replace(site, aggregators=(wired, *others))
    connections = Reachability(frozenset, frozenset, dict)
    state = State(again, rack.store, lambda: 0.0, connections, SharedProjects(again))
    stored = {
        "gpu0": AttachPoint("as0", 1),
        "gpu1": AttachPoint("as0", 9),
        "gpu4": AttachPoint("as0", 3),
    }
    as1 = [AttachPoint("as1", port) for port in range(1, 5)]
    uplinks = {
        AttachPoint("as0", 1): as1[0],  # gpu0 is there
        AttachPoint("as0", 2): as1[1],
        AttachPoint("as0", 7): as1[2],  # no such port
    }
    state.restore(Loaded({}, (), stored, uplinks, (), (), (), 0))
    light, gpu = state.light, [EndpointEnd(f"gpu{n}") for n in range(5)]
    assert light.attachments == {"gpu0": AttachPoint("as0", 1), "gpu4": AttachPoint("as0", 9)}
    assert light.uplinks == {AttachPoint("as0", 2): as1[1]}
    assert light.slots(light.uplink_points()) == {("as0", "ocs0"): 1, ("as1", "ocs0"): 1}
    assert not light.relocate({gpu[0]: AttachPoint("as0", 1)})
    assert light.relocate({gpu[2]: AttachPoint("as0", 1), gpu[3]: None})
    assert "gpu0" not in light.attachments
    swap = {gpu[2]: AttachPoint("as0", 9), gpu[4]: AttachPoint("as0", 1)}
    assert light.relocate(swap)
    assert light.attachments == of_endpoints(swap)
    assert light.relocate({gpu[1]: as1[1]})
    assert light.uplinks == {}
    assert light.relocate({AttachPoint("as0", 1): as1[1]})
    assert light.attachments == {"gpu2": AttachPoint("as0", 9)}
