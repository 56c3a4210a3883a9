"""Faults of devices, agents and users, over fakes: which jobs are affected and which are not."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from base import clock
from controller.base.errors import ServiceError
from controller.devices.aggregators import AggregatorError, AttachPoint
from controller.devices.engine import RankState
from controller.devices.openflow.rules.program import FlowProgram
from controller.fabric import executor
from controller.schema.plans import PlanRequest
from ocs_driver.base import ApplyResult
from ocs_driver.errors import OcsTimeout
from scheduler.model import Policy
from testbed.simulated.clock import VirtualClock
from tests.parts.controller.jobs import scattered, submit
from tests.parts.controller.rack import Rack


async def test_plan_of_an_older_epoch_is_refused_before_any_device_call(rack: Rack) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    await rack.desks.jobs.cancel("blue")
    asked = len(rack.switch.applied)
    with pytest.raises(ServiceError) as caught:
        await rack.desks.plans.apply(plan, wait_s=1)
    assert caught.value.code == "conflict"
    assert len(rack.switch.applied) == asked


async def test_regroup_to_a_dark_port_is_rolled_back_and_the_port_quarantined(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    rack.switch.dull = {(plan.circuits.make[0].a, plan.circuits.make[0].b)}
    done = await rack.desks.plans.apply(plan, wait_s=30)
    assert done.state == "rolled_back"
    bad = f"{plan.circuits.make[0].aggregator}/{plan.circuits.make[0].aggregator_port}"
    assert done.quarantined_ports == [bad]
    red = rack.desks.jobs.job("red")
    assert (red.state, red.homes) == ("running", before.homes)
    assert rack.engine.states("red") == {RankState.RUNNING}
    ports = [p for a in await rack.desks.fabric.aggregators() for p in a.ports if p.quarantined]
    assert len(ports) == 1


async def test_loss_of_both_paths_fails_the_job_and_quarantines_the_endpoint(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    lost = plan.moves[0].endpoint
    fiber = rack.site.endpoint(lost).fiber.port
    rack.switch.dull = {(fiber, far) for far in _far_ports()}
    done = await rack.desks.plans.apply(plan, wait_s=30)
    assert (done.state, done.quarantined_ports) == ("quarantined", [lost])
    await rack.state("red", "failed")
    red = rack.desks.jobs.job("red")
    assert f"no path is left for {lost}" in red.reason
    views = {e.name: e for e in await rack.desks.fabric.endpoints()}
    assert (views[lost].state, views[lost].home) == ("quarantined", None)


def _far_ports() -> list[str]:
    return [f"2.{aggregator}.{port}" for aggregator in (1, 2) for port in (1, 2, 3, 4)]


async def test_an_edited_plan_is_refused_before_any_device_call(rack: Rack) -> None:
    await scattered(rack)
    plan = (await rack.desks.plans.make_plan(PlanRequest())).model_dump(mode="json")
    asked = len(rack.switch.applied)
    moves = plan["moves"]
    crowd = [{"endpoint": f"gpu{i}", "from": h, "to": "as1"} for i, h in [(0, "as0"), (4, "as0")]]
    bad: list[tuple[dict[str, object], str]] = [
        ({**plan, "site": "elsewhere"}, "invalid"),
        ({**plan, "epoch": plan["epoch"] - 1, "basis": None}, "conflict"),
        ({**plan, "moves": [{**moves[0], "endpoint": "gpu9"}]}, "invalid"),
        ({**plan, "moves": [{**moves[0], "to": "as9"}]}, "conflict"),
        ({**plan, "moves": [moves[0], moves[0]]}, "invalid"),
        ({**plan, "moves": [*crowd, moves[1]]}, "invalid"),
        ({"moves": "all"}, "invalid"),
    ]
    for edited, code in bad:
        with pytest.raises(ServiceError) as caught:
            await rack.desks.plans.apply(edited, wait_s=1)
        assert caught.value.code == code, (caught.value.message, edited)
    assert len(rack.switch.applied) == asked


async def test_moves_need_a_connected_aggregator(rack: Rack) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    rack.aggregators.away = {"as1"}
    with pytest.raises(ServiceError) as caught:
        await rack.desks.plans.apply(plan, wait_s=1)
    assert (caught.value.code, caught.value.object) == ("unavailable", "aggregator/as1")
    health = rack.desks.health.health()
    assert health.status == "degraded"


async def test_a_lost_server_affects_no_other_server(rack: Rack) -> None:
    await submit(rack, "red", 2, endpoints=["gpu0", "gpu2"])
    await rack.state("red", "running")
    rack.engine.lost = {"srv1"}
    await submit(rack, "blue", 2)
    await rack.state("blue", "running")
    assert rack.desks.jobs.job("red").state == "running"
    assert set(rack.desks.jobs.job("blue").endpoints) <= {"gpu1", "gpu4", "gpu5"}


async def test_switch_that_obeys_without_an_answer_commits(rack: Rack) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    rack.switch.late = True
    done = await rack.desks.plans.apply(plan, wait_s=60)
    assert done.state == "committed"


async def test_transaction_waits_for_a_switch_lost_after_the_cut(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {e: at.aggregator for e, at in rack.aggregators.light().items()}
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    apply = rack.switch.apply

    async def cut_and_vanish(delete: Any, make: Any, **kwargs: Any) -> ApplyResult:
        await apply(delete, (), **kwargs)
        rack.switch.away = True
        raise OcsTimeout("timeout", "ocs0", "no answer")

    rack.switch.apply = cut_and_vanish  # type: ignore[method-assign]
    running = await rack.desks.plans.apply(plan, wait_s=0)

    async def waits() -> bool:
        view = rack.desks.plans.transaction(running.id)
        return (view.state, view.waiting_for) == ("rolling_back", "ocs0")

    await rack.until(waits)
    rack.switch.apply = apply  # type: ignore[method-assign]
    rack.switch.away = False

    async def ended() -> bool:
        return rack.desks.plans.transaction(running.id).state == "rolled_back"

    await rack.until(ended)
    done = rack.desks.plans.transaction(running.id)
    assert done.quarantined_ports == []
    assert {e: at.aggregator for e, at in rack.aggregators.light().items()} == before
    assert rack.engine.states("red") == rack.engine.states("blue") == {RankState.RUNNING}


async def test_job_that_ends_during_a_regroup_quarantines_no_port(rack: Rack) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    freeze = rack.engine.freeze

    async def freeze_too_late(job: str, settle_s: float = 0.0) -> bool | None:
        for rank in range(4):
            rack.engine.exit("red", rank, 0)
        return await freeze(job, settle_s)

    rack.engine.freeze = freeze_too_late  # type: ignore[method-assign]
    done = await rack.desks.plans.apply(plan, wait_s=60)
    assert (done.state, done.quarantined_ports) == ("committed", [])
    await rack.state("red", "completed")


async def test_loss_of_an_aggregators_session_during_a_regroup_fails_no_job(rack: Rack) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    apply = rack.switch.apply

    async def apply_then_lose(*args: Any, **kwargs: Any) -> ApplyResult:
        rack.aggregators.away = {"as1"}
        return await apply(*args, **kwargs)

    rack.switch.apply = apply_then_lose  # type: ignore[method-assign]
    done = await rack.desks.plans.apply(plan, wait_s=60)
    assert (done.state, done.quarantined_ports) == ("rolled_back", [])
    assert rack.engine.states("red") == {RankState.RUNNING}
    before = {m.endpoint: m.source for m in plan.moves}
    assert {e: rack.aggregators.light()[e].aggregator for e in before} == before


async def test_an_aggregator_that_is_late_during_rollback_costs_no_path(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its flows for the old paths are installed again: without them no probe is answered."""
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    rack.switch.refused = {plan.circuits.make[0].b}
    late: set[str] = set()
    apply, install = rack.switch.apply, rack.aggregators.install

    async def applied(*args: Any, **kwargs: Any) -> ApplyResult:
        if len(rack.switch.applied) > asked:  # the way back
            rack.switch.refused.clear()
            late.update({"as0", "as1"})
        return await apply(*args, **kwargs)

    async def installed(programs: Mapping[str, FlowProgram], *, deadline_s: float) -> None:
        (name,) = programs
        if name in late:
            late.discard(name)
            raise AggregatorError("timeout", name, "no answer within 8 s", "wait")
        await install(programs, deadline_s=deadline_s)

    asked = len(rack.switch.applied)
    rack.switch.apply = applied  # type: ignore[method-assign]
    monkeypatch.setattr(rack.aggregators, "install", installed)
    done = await rack.desks.plans.apply(plan, wait_s=60)
    bad = f"{plan.circuits.make[0].aggregator}/{plan.circuits.make[0].aggregator_port}"
    assert (done.state, done.quarantined_ports) == ("rolled_back", [bad])
    assert "no answer within 8 s" in done.error
    assert rack.engine.states("red") == rack.engine.states("blue") == {RankState.RUNNING}


async def test_a_failed_freeze_moves_no_light(rack: Rack) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    rack.engine.broken = {"freeze"}
    asked = len(rack.switch.applied)
    done = await rack.desks.plans.apply(plan, wait_s=60)
    assert done.state == "rolled_back"
    assert len(rack.switch.applied) == asked
    assert rack.engine.states("red") == {RankState.RUNNING}


async def test_a_failed_start_is_reported(rack: Rack) -> None:
    rack.engine.broken = {"start"}
    await submit(rack, "red", 2)
    await rack.state("red", "failed")
    assert "start broke" in rack.desks.jobs.job("red").reason


async def test_existing_circuits_win_over_the_site_files_homes(tmp_path: Path) -> None:
    rack = Rack(tmp_path)
    rack.switch.add("1.1.1", "2.2.4")  # gpu0 under as1, against the site file
    await rack.up()
    homes = {e.name: e.home for e in await rack.desks.fabric.endpoints()}
    assert homes == {**rack.site.homes, "gpu0": "as1"}
    await rack.down()


async def test_a_foreign_circuit_is_not_changed(tmp_path: Path) -> None:
    rack = Rack(tmp_path)
    rack.switch.add("1.1.6", "9.9.9", owner="other")
    await rack.up()
    await submit(rack, "red", 6)

    async def reported() -> bool:
        return "unavailable" in rack.desks.jobs.job("red").reason

    await rack.until(reported)
    assert any(c.owner == "other" for c in rack.switch.circuits)
    await rack.down()


async def test_a_barrier_reply_before_the_data_plane_changes_is_not_trusted(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F6: the flow-mods are acknowledged at once; the data plane follows much later."""
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    asked = 0
    admits = rack.aggregators.admits_probe

    def later(point: AttachPoint, ip: str) -> bool:
        nonlocal asked
        asked += 1
        return asked > 5 and admits(point, ip)

    monkeypatch.setattr(rack.aggregators, "admits_probe", later)
    routed: list[int] = []
    install = rack.aggregators.install

    async def noted(programs: Mapping[str, FlowProgram], *, deadline_s: float) -> None:
        routed.append(asked)
        await install(programs, deadline_s=deadline_s)

    monkeypatch.setattr(rack.aggregators, "install", noted)
    done = await rack.desks.plans.apply(plan, wait_s=60)
    assert done.state == "committed"
    drained = [number for number in routed if number == 0]
    assert drained, "the drain came before the first probe"
    assert min(number for number in routed if number) > 5, "no new rule before a probe was answered"


async def test_light_does_not_move_while_a_drained_port_still_transmits(rack: Rack) -> None:
    """F6: a live job's frames still follow rules that the aggregator says are gone."""
    await scattered(rack, Policy.LIVE)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    moved = {move.endpoint for move in plan.moves}
    leaving = {rack.see.light.attachments[e] for e in moved}
    reads: Counter[AttachPoint] = Counter()
    cut_after: list[int] = []
    apply = rack.switch.apply

    def sent(point: AttachPoint) -> int:
        reads[point] += point in leaving
        return min(reads[point], 5)  # the data plane forgets the rules at the fifth look

    async def noted(*args: Any, **named: Any) -> ApplyResult:
        cut_after.append(min(reads[point] for point in leaving))
        return await apply(*args, **named)

    rack.aggregators.sent = sent
    rack.switch.apply = noted  # type: ignore[method-assign]
    done = await rack.desks.plans.apply(plan, wait_s=60)
    assert done.state == "committed"
    assert len(cut_after) == 1
    assert cut_after[0] >= 6  # telemetry looks once a second as well


async def test_a_drain_that_never_holds_turns_the_regroup_back(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await scattered(rack, Policy.LIVE)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    frames = itertools.count()
    rack.aggregators.sent = lambda point: next(frames)
    applied = len(rack.switch.applied)
    done = await rack.desks.plans.apply(plan, wait_s=60)
    assert (done.state, done.error) == (
        "rolled_back",
        "the old ports of live jobs still transmit after the drain",
    )
    assert len(rack.switch.applied) == applied
    red = rack.desks.jobs.job("red")
    assert (red.state, red.homes) == ("running", before.homes)


async def test_a_pause_of_the_controller_quarantines_no_port(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own pause used up the time for probes; the paths worked all the time."""
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    probe, pauses = rack.aggregators.probe, 0

    async def paused(*path: Any, deadline_s: float) -> float | None:
        nonlocal pauses
        pauses += 1
        if pauses == 1:
            clock.sleep(2 * executor.QUALIFY_TIMEOUT_S)  # the whole process pauses
            return None
        return await probe(*path, deadline_s=deadline_s)

    monkeypatch.setattr(rack.aggregators, "probe", paused)
    done = await rack.desks.plans.apply(plan, wait_s=30)
    assert (done.state, done.quarantined_ports) == ("committed", [])


def set_clock(step_s: float) -> None:
    """Set the wall clock, as an operator or NTP does."""
    now = clock.current()
    assert isinstance(now, VirtualClock)
    now.step(step_s)


async def test_a_jump_of_the_wall_clock_ends_no_wait_and_loses_no_job(rack: Rack) -> None:
    """F21: an hour forward and an hour back, during a regroup and after it."""
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    state = rack.see
    began = await rack.desks.plans.apply(plan, wait_s=0)
    set_clock(3600)

    async def ended() -> bool:
        return rack.desks.plans.transaction(began.id).state == "committed"

    await rack.until(ended)
    await rack.until(lambda: not state.transactions.running)
    set_clock(-7200)
    await asyncio.sleep(60.0)
    assert rack.desks.health.health().status == "ok"
    assert not state.unavailable()
    assert rack.engine.states("red") == rack.engine.states("blue") == {RankState.RUNNING}


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
async def test_a_step_of_the_wall_clock_does_not_change_a_regroups_times(
    rack: Rack, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    """The clock is set while light is dark: durations are measured, not differences of dates."""
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    began, probe = clock.time(), rack.aggregators.probe

    async def stepped(*path: Any, deadline_s: float) -> float | None:
        monkeypatch.setattr(rack.aggregators, "probe", probe)
        set_clock(step_s)
        return await probe(*path, deadline_s=deadline_s)

    monkeypatch.setattr(rack.aggregators, "probe", stepped)
    done = await rack.desks.plans.apply(plan, wait_s=30)
    assert done.state == "committed" and done.dark_time_s
    assert all(0 <= dark_s < 1800 for dark_s in done.dark_time_s.values())
    assert done.finished_at is not None
    moments = [began, done.started_at, *(phase.started_at for phase in done.phases)]
    assert moments == sorted(moments) and moments[-1] <= done.finished_at < began + 1800
