"""Manual operations (attach, abort, release) and the drift policies adopt, repair and alarm."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.base.errors import ServiceError
from controller.devices.engine import RankState
from controller.reconcile.drift import LossDetector, stray_ranks
from controller.reconcile.drift_policy import DriftPolicy
from controller.schema.fabric import EventView
from controller.schema.plans import PlanRequest
from tests.parts.controller.jobs import scattered, submit
from tests.parts.controller.rack import Rack


async def events(rack: Rack, reason: str) -> list[EventView]:
    return [e for e in rack.desks.fabric.events(0, 1000) if e.reason == reason]


async def told(rack: Rack, reason: str) -> EventView:
    """Wait for an event."""
    found: list[EventView] = []

    async def there() -> bool:
        found[:] = await events(rack, reason)
        return bool(found)

    await rack.until(there)
    return found[-1]


def light(rack: Rack) -> dict[str, str]:
    return {e: at.aggregator for e, at in rack.aggregators.light().items()}


# --- attach and detach ----------------------------------------------------------------------


async def test_attach_moves_a_busy_endpoint_and_its_job_goes_on(rack: Rack) -> None:
    await submit(rack, "red", 2, endpoints=["gpu0", "gpu1"])
    await rack.state("red", "running")
    done = await rack.desks.plans.attach("gpu0", "as1", wait_s=60)
    assert (done.state, done.cause, done.jobs) == ("committed", "attach", ["red"])
    assert light(rack)["gpu0"] == "as1"
    assert rack.engine.calls[-2:] == [("freeze", "red"), ("thaw", "red")]


async def test_a_detached_endpoint_stays_dark_across_a_restart_until_it_is_attached(
    rack: Rack,
) -> None:
    dark = None
    assert (await rack.desks.plans.attach("gpu5", dark, wait_s=60)).state == "committed"
    assert "gpu5" not in light(rack)
    await rack.down()
    await rack.up()
    await asyncio.sleep(15)
    assert "gpu5" not in light(rack)
    back = await rack.desks.plans.attach("gpu5", "as0", wait_s=60)
    assert back.state == "committed"
    assert light(rack)["gpu5"] == "as0"
    assert not rack.see.light.detached


@pytest.mark.parametrize(
    ("endpoint", "aggregator", "code"),
    [
        ("gpu9", "as0", "not_found"),
        ("gpu0", "as9", "not_found"),
        ("gpu0", "as0", "invalid"),
        ("gpu0", None, "conflict"),  # carries a job
    ],
)
async def test_an_invalid_attach_is_refused_before_a_device_is_touched(
    rack: Rack, endpoint: str, aggregator: str | None, code: str
) -> None:
    await submit(rack, "red", 1, endpoints=["gpu0"])
    await rack.state("red", "running")
    asked = len(rack.switch.applied)
    with pytest.raises(ServiceError) as caught:
        await rack.desks.plans.attach(endpoint, aggregator, wait_s=1)
    assert caught.value.code == code
    assert len(rack.switch.applied) == asked


# --- abort ------------------------------------------------------------------------------------


async def test_abort_before_the_light_moves_restores_everything(rack: Rack) -> None:
    before = light(rack)
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    go = asyncio.Event()
    freeze = rack.engine.freeze

    async def slow(job: str, settle_s: float = 0.0) -> bool | None:
        await go.wait()
        return await freeze(job, settle_s)

    rack.engine.freeze = slow  # type: ignore[method-assign]
    running = await rack.desks.plans.apply(plan, wait_s=0)

    async def freezing() -> bool:
        view = rack.desks.plans.transaction(running.id)
        return view.phase == "quiesce" and view.how_to_stop == f"lightloom abort {running.id}"

    await rack.until(freezing)
    assert rack.desks.plans.abort(running.id).state == "running"
    go.set()

    async def ended() -> bool:
        return rack.desks.plans.transaction(running.id).state == "rolled_back"

    await rack.until(ended)
    assert "stopped by operator" in rack.desks.plans.transaction(running.id).error
    assert light(rack) == before
    assert rack.engine.states("red") == rack.engine.states("blue") == {RankState.RUNNING}


async def test_abort_of_an_ended_or_unknown_transaction_is_refused(rack: Rack) -> None:
    done = await rack.desks.plans.attach("gpu0", "as1", wait_s=60)
    for ident, code in [(done.id, "conflict"), ("t99", "not_found")]:
        with pytest.raises(ServiceError) as caught:
            rack.desks.plans.abort(ident)
        assert caught.value.code == code


# --- quarantine -------------------------------------------------------------------------------


async def test_the_release_of_a_port_survives_a_restart(rack: Rack) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    step = plan.circuits.make[0]
    rack.switch.dull = {(step.a, step.b)}
    await rack.desks.plans.apply(plan, wait_s=30)
    (entry,) = rack.desks.quarantine.views()
    assert entry.object == f"{step.aggregator}/{step.aggregator_port}"
    rack.switch.dull = set()
    assert (await rack.desks.quarantine.release(entry.object)).object == entry.object
    with pytest.raises(ServiceError) as caught:
        await rack.desks.quarantine.release(entry.object)
    assert caught.value.code == "not_found"
    await rack.down()
    await rack.up()
    assert not rack.desks.quarantine.views()
    again = await rack.desks.plans.make_plan(PlanRequest())
    assert (await rack.desks.plans.apply(again, wait_s=60)).state == "committed"


async def test_a_released_endpoint_gets_its_light_back(rack: Rack) -> None:
    fiber = rack.site.endpoint("gpu0").fiber.port
    far = [f"2.{aggregator}.{port}" for aggregator in (1, 2) for port in (1, 2, 3, 4)]
    rack.switch.dull = {(fiber, port) for port in far}
    done = await rack.desks.plans.attach("gpu0", "as1", wait_s=30)
    assert (done.state, done.quarantined_ports) == ("quarantined", ["gpu0"])
    rack.switch.dull = set()
    await rack.desks.quarantine.release("gpu0")
    await rack.until(lambda: light(rack).get("gpu0") == "as0")


# --- drift ------------------------------------------------------------------------------------


def cut(rack: Rack, *fibers: str) -> None:
    rack.switch.circuits = [c for c in rack.switch.circuits if c.a not in fibers]


async def drifting(rack: Rack, policy: DriftPolicy) -> None:
    """Run a job on gpu0 and gpu1 under as0, then move gpu0's light to as1 at the switch."""
    await rack.down()
    await rack.up(drift=policy)
    await submit(rack, "red", 2, endpoints=["gpu0", "gpu1"])
    await rack.state("red", "running")
    cut(rack, "1.1.1")
    rack.switch.add("1.1.1", "2.2.4")
    event = await told(rack, "CircuitDrift")
    assert event.object == "endpoint/gpu0"
    assert "found as1/4" in event.message


async def test_repair_moves_a_jobs_light_back(rack: Rack) -> None:
    await drifting(rack, DriftPolicy.REPAIR)
    await rack.until(lambda: light(rack)["gpu0"] == "as0")
    await rack.until(lambda: rack.engine.states("red") == {RankState.RUNNING})
    await rack.until(lambda: not rack.see.transactions.running)
    assert light(rack)["gpu0"] == rack.see.light.attachments["gpu0"].aggregator


async def test_adopt_makes_the_found_circuit_the_intent(rack: Rack) -> None:
    await drifting(rack, DriftPolicy.ADOPT)
    state = rack.see
    await rack.until(lambda: state.light.attachments["gpu0"].aggregator == "as1")
    await asyncio.sleep(15)
    assert light(rack)["gpu0"] == "as1"


async def test_alarm_changes_nothing_and_is_raised_once(rack: Rack) -> None:
    await drifting(rack, DriftPolicy.ALARM)
    await asyncio.sleep(15)
    assert light(rack)["gpu0"] == "as1"
    assert rack.see.light.attachments["gpu0"].aggregator == "as0"
    assert len(await events(rack, "CircuitDrift")) == 1


async def test_a_mass_loss_of_circuits_is_not_repaired_automatically(rack: Rack) -> None:
    rack.switch.circuits = []
    event = await told(rack, "CircuitsVanished")
    assert event.severity == "error"
    asked = len(rack.switch.applied)
    await asyncio.sleep(15)
    assert len(rack.switch.applied) == asked
    await rack.desks.drift.repair("ocs0")
    await rack.until(lambda: light(rack) == rack.site.homes)


async def test_a_new_foreign_circuit_is_reported_and_its_port_is_not_used(rack: Rack) -> None:
    rack.switch.add("2.1.4", "9.9.9", owner="other")
    event = await told(rack, "ForeignCircuit")
    assert "2.1.4-9.9.9" in event.message
    assert len(await events(rack, "ForeignCircuit")) == 1
    blocked = {str(p.port) for p in rack.see.blocked_points()}
    assert blocked == {"4"}


async def test_flows_that_were_changed_from_outside_are_corrected(rack: Rack) -> None:
    installs = len(rack.aggregators.history)
    rack.aggregators.edited["as1"] = ["missing: table 0 …"]
    event = await told(rack, "FlowDrift")
    assert event.object == "aggregator/as1"
    await rack.until(lambda: len(rack.aggregators.history) > installs)
    assert not rack.aggregators.edited


async def test_a_container_that_was_frozen_from_outside_is_thawed(rack: Rack) -> None:
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    rack.engine.set_all("red", RankState.PAUSED)
    event = await told(rack, "ContainerDrift")
    assert event.object == "job/red"
    await rack.until(lambda: rack.engine.states("red") == {RankState.RUNNING})


async def test_a_paused_job_is_not_drift(rack: Rack) -> None:
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    await rack.desks.jobs.pause("red")
    await asyncio.sleep(15)
    assert rack.engine.states("red") == {RankState.PAUSED}
    assert not stray_ranks(rack.see.jobs.values(), rack.see.jobs.statuses)


# --- the controller itself ----------------------------------------------------------------------


async def test_when_most_devices_vanish_at_once_no_device_is_touched(rack: Rack) -> None:
    await submit(rack, "red", 2, endpoints=["gpu0", "gpu1"])
    await rack.state("red", "running")
    rack.engine.lost = {server.name for server in rack.site.servers}
    rack.aggregators.away = {"as0", "as1"}
    await told(rack, "SuspectOurselves")
    health = rack.desks.health.health()
    assert "vanished at once" in health.suspect
    calls, applied = len(rack.engine.calls), len(rack.switch.applied)
    cut(rack, "1.1.1")
    await asyncio.sleep(15)
    assert (len(rack.engine.calls), len(rack.switch.applied)) == (calls, applied)
    assert rack.desks.jobs.job("red").state == "running"
    rack.engine.lost, rack.aggregators.away = set(), set()
    await told(rack, "SuspicionOver")
    await rack.until(lambda: light(rack).get("gpu0") == "as0")


def test_devices_that_vanish_one_by_one_are_not_a_mass() -> None:
    detector, names = LossDetector(), [f"d{i}" for i in range(8)]
    assert [detector.observe(names[i:], i * 60.0) for i in range(8)] == [""] * 8


def test_a_suspicion_ends_when_devices_come_back_and_not_before() -> None:
    detector, names = LossDetector(), [f"d{i}" for i in range(8)]
    detector.observe(names, 0)
    assert detector.observe(names[:2], 1)
    assert detector.observe(names[:2], 3600)
    assert not detector.observe(names[:5], 3601)


async def test_the_first_start_raises_no_suspicion(tmp_path: Path) -> None:
    rack = Rack(tmp_path)
    rack.engine.lost = {server.name for server in rack.site.servers}
    service_ = asyncio.create_task(rack.up())
    await asyncio.sleep(15)
    assert not rack.see.suspect
    service_.cancel()
    await asyncio.gather(service_, return_exceptions=True)
    await rack.down()
