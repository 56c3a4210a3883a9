"""A controller resumes after its successor took over: switches know no term, so it asks agents."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from controller.base.errors import ServiceError
from controller.devices.engine import EngineError, EngineFault, Fenced
from controller.devices.openflow.rules.program import FlowProgram
from controller.schema.plans import PlanRequest
from pki import CONTROLLER
from tests.parts.agent.rig import agent_rig, raw
from tests.parts.controller.emulated import KINDS, rack_on, switch_of, told
from tests.parts.controller.jobs import scattered, submit
from tests.parts.controller.rack import Rack

LIMIT_S = 60.0


async def test_a_controller_that_resumes_in_switch_after_its_successor_took_over(
    tmp_path: Path,
) -> None:
    async with (
        agent_rig(tmp_path / "agent") as agent,
        agent.controller(raw(agent.directory / "controller", CONTROLLER)) as successor,
        rack_on(KINDS[0], tmp_path / "state") as rack,
    ):
        agent.engine.command(1)
        successor.command(2)
        rack.engine.confirm_command = agent.engine.confirm_command  # type: ignore[method-assign]
        await rack.up()
        await scattered(rack)
        plan = await rack.desks.plans.make_plan(PlanRequest())
        before, flows = switch_of(rack).names(), dict[str, FlowProgram]()
        journal = switch_of(rack).emulator.switch.journal
        journal.clear()

        async def wake(servers: Iterable[str], timeout_s: float) -> None:
            """Between drain and switch, this controller is suspended and its successor starts."""
            await successor.observe()
            flows.update(rack.aggregators.programs)
            await agent.engine.confirm_command(servers, LIMIT_S)

        rack.engine.confirm_command = wake  # type: ignore[method-assign]
        done = await rack.desks.plans.apply(plan, wait_s=LIMIT_S)
        assert done.state == "rolled_back"
        assert "newer controller" in done.error
        assert [heard for heard in journal if heard.changes] == []
        assert switch_of(rack).names() == before
        assert len(told(rack, "CommandLost")) == 1
        health = rack.desks.health.health()
        assert health.status == "degraded"
        assert "newer controller" in health.suspect
        with pytest.raises(ServiceError) as refused:
            await rack.desks.plans.attach("gpu5", "as0", LIMIT_S)
        with pytest.raises(ServiceError, match="newer controller"):
            await submit(rack, "late", 1)
        assert refused.value.code == "forbidden"
        rack.parts.drift.suspect()
        assert "newer controller" in rack.desks.health.health().suspect
        assert rack.aggregators.programs == flows, "no flows were changed either"
        assert rack.desks.jobs.job("red").state == "running", (
            "only its successor decides about jobs"
        )


async def test_every_change_of_light_is_confirmed_with_the_servers_it_touches(rack: Rack) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    rack.engine.confirmed.clear()
    await rack.desks.plans.apply(plan, wait_s=LIMIT_S)
    touched = {rack.site.endpoint(move.endpoint).server for move in plan.moves}
    assert rack.engine.confirmed == [tuple(sorted(touched))]


async def test_light_stays_while_no_agent_confirms_command(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    before, asked = rack.switch.lit(), 0

    async def silent_once(servers: Iterable[str], timeout_s: float) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise EngineError([EngineFault("unavailable", "controller", "no agent confirms")])

    monkeypatch.setattr(rack.engine, "confirm_command", silent_once)
    done = await rack.desks.plans.apply(plan, wait_s=LIMIT_S)
    assert (done.state, asked) == ("rolled_back", 2)
    assert "no agent confirms" in done.error
    assert rack.switch.lit() == before
    assert told(rack, "CommandLost") == []
    assert rack.desks.health.health().status == "ok"


async def test_a_freeze_refused_for_a_newer_controller_reports_lost_command(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(job: str, settle_s: float = 0.0) -> bool | None:
        raise Fenced([EngineFault("forbidden", "server/srv0", "a newer controller commands it")])

    await scattered(rack)
    plan, applied = (
        await rack.desks.plans.make_plan(PlanRequest()),
        len(rack.switch.applied),
    )
    monkeypatch.setattr(rack.engine, "freeze", refused)
    done = await rack.desks.plans.apply(plan, wait_s=LIMIT_S)
    assert done.state == "rolled_back"
    assert len(told(rack, "CommandLost")) == 1
    assert len(rack.switch.applied) == applied
