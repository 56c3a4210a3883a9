"""Many ranks at once: a server, an aggregator, a switch; and drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from controller.base.errors import ServiceError
from controller.devices.engine import RankState
from controller.swaps import relight, watch
from tests.parts.controller.aggregators import FakeAggregators
from tests.parts.controller.losses import KEEPS, FakeCheckpoints, lose, rack_with, with_checkpoints
from tests.parts.controller.rack import Rack, crash
from tests.parts.controller.recoveries import (
    again,
    check,
    job_of,
    reasons,
    rows,
    running,
    state_of,
)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> FakeCheckpoints:
    made = FakeCheckpoints()
    with_checkpoints(monkeypatch, made)
    return made


@pytest_asyncio.fixture
async def spared(tmp_path: Path, kept: FakeCheckpoints) -> AsyncIterator[Rack]:
    rack = rack_with(tmp_path, "gpu4", "gpu5")
    await rack.up()
    yield rack
    await rack.down()


async def test_two_spares_take_the_places_of_a_lost_servers_endpoints(spared: Rack) -> None:
    before = await running(spared, **KEEPS)
    old = {k: s for k, s in spared.engine.statuses.items() if s.server == "srv1"}
    lose(spared, "srv1")
    after = await again(spared, before)
    assert after.endpoints[:2] == ("gpu0", "gpu1")
    assert set(after.endpoints[2:]) == {"gpu4", "gpu5"}
    (row,) = rows(spared)
    assert (row.cause, row.objects, len(row.swaps)) == ("server", ("server/srv1",), 2)
    assert state_of(spared).drains.left, "its containers may live"
    assert "containers of a lost run" not in state_of(spared).unavailable().get("gpu0", "")
    # The server is back, and with it the containers of the lost run.
    spared.engine.statuses |= {("red", 10 + s.rank): s for s in old.values()}
    spared.engine.lost.clear()
    await spared.until(lambda: not state_of(spared).drains.left)
    assert {s.epoch for s in spared.engine.statuses.values()} == {after.epoch}
    assert "LeftRunStopped" in reasons(spared)
    assert not state_of(spared).light.squatted
    await spared.until(lambda: not state_of(spared).transactions.running)
    check(spared)


@pytest.mark.parametrize("restart", ["never", "on-failure:3"])
async def test_a_rank_that_ends_since_its_peers_server_is_lost_is_no_failure(
    spared: Rack, restart: str
) -> None:
    """It ends before the loss of the other server is known."""
    before = await running(spared, **KEEPS, restart=restart)
    lose(spared, "srv1")
    spared.engine.exit("red", 0, 1)
    after = await again(spared, before)
    assert after.endpoints[:2] == ("gpu0", "gpu1")
    assert set(after.endpoints[2:]) == {"gpu4", "gpu5"}
    assert (after.failures, after.state) == (0, "running")
    assert rows(spared)[-1].cause == "server"
    check(spared)


async def test_a_job_leaves_a_lost_aggregator_for_free_ports_of_another(
    tmp_path: Path, kept: FakeCheckpoints
) -> None:
    rack = rack_with(tmp_path)
    await rack.up()
    before = await running(rack, "red", 1, endpoints=["gpu2"], **KEEPS)
    was = FakeAggregators.carrier
    rack.aggregators.carrier = lambda name: {  # type: ignore[method-assign]
        **was(rack.aggregators, name),
        8: not rack.aggregators.away,
    }
    rack.aggregators.away.add("as1")
    after = await again(rack, before)
    assert after.endpoints == ("gpu2",)
    assert rack.aggregators.light()["gpu2"].aggregator == "as0"
    (row,) = rows(rack)
    assert (row.cause, row.how, row.objects) == ("aggregator", "again", ("aggregator/as1",))
    assert not state_of(rack).light.quarantine
    await rack.down()


async def test_an_aggregator_from_which_no_nic_has_light_is_lost_without_a_stall(
    tmp_path: Path, kept: FakeCheckpoints
) -> None:
    rack = rack_with(tmp_path)
    await rack.up()
    before = await running(rack, "red", 1, endpoints=["gpu2"], **KEEPS)
    rack.engine.nics["gpu2"] = True
    rack.aggregators.away.add("as1")
    await asyncio.sleep(30.0)
    assert not rows(rack), "it gives light, and its session alone proves nothing"
    rack.engine.nics["gpu2"] = False
    after = await again(rack, before)
    assert rack.aggregators.light()["gpu2"].aggregator == "as0"
    (row,) = rows(rack)
    assert (row.cause, row.objects) == ("aggregator", ("aggregator/as1",))
    assert after.endpoints == ("gpu2",)
    await rack.down()


async def test_an_aggregator_without_power_is_no_lost_nic_while_its_session_still_stands(
    tmp_path: Path, kept: FakeCheckpoints
) -> None:
    """Its own word, that the port has light, is older than its death."""
    rack = rack_with(tmp_path)
    await rack.up()
    before = await running(rack, "red", 1, endpoints=["gpu2"], **KEEPS)
    rack.engine.nics["gpu2"] = False
    await asyncio.sleep(watch.SESSION_S)
    rack.aggregators.away.add("as1")
    after = await again(rack, before)
    assert [row.cause for row in rows(rack)] == ["aggregator"]
    assert after.endpoints == ("gpu2",)
    await rack.down()


async def test_a_nic_that_stays_dark_is_lost_though_its_port_has_light(
    tmp_path: Path, kept: FakeCheckpoints
) -> None:
    rack = rack_with(tmp_path)
    await rack.up()
    await running(rack, "red", 1, endpoints=["gpu2"], **KEEPS)
    rack.engine.nics["gpu2"] = False
    await rack.until(lambda: [row.cause for row in rows(rack)] == ["endpoint"])
    await rack.down()


def darken(rack: Rack, endpoint: str) -> None:
    """Take the light from an endpoint; its aggregator and its agent say so at once."""
    rack.engine.nics[endpoint] = False
    was = FakeAggregators.carrier

    def carrier(as_name: str) -> dict[int, bool]:
        at, up = rack.aggregators.light().get(endpoint), rack.engine.nics[endpoint]
        mine = {at.port: up} if at is not None and at.aggregator == as_name else {}
        return {**was(rack.aggregators, as_name), **mine}

    rack.aggregators.carrier = carrier  # type: ignore[method-assign]


@pytest.mark.parametrize("noticed", [True, False], ids=["session closed", "session stands"])
async def test_nothing_starts_on_a_lost_switch_until_its_session_is_back(
    tmp_path: Path, kept: FakeCheckpoints, *, noticed: bool
) -> None:
    """A switch without power is asked before its endpoints are called lost."""
    rack = rack_with(tmp_path)
    await rack.up()
    before = await running(rack, "red", 1, endpoints=["gpu2"], **KEEPS)
    rack.switch.away = True
    if noticed:
        await rack.until(lambda: not state_of(rack).connections.switches())
    darken(rack, "gpu2")
    await rack.until(lambda: job_of(rack).state == "pending")
    assert [row.cause for row in rows(rack)] == ["switch"]
    await asyncio.sleep(30.0)
    assert job_of(rack).state == "pending"
    assert len(rows(rack)) == 1, "the loss does not end with the job that showed it"
    assert set(state_of(rack).unavailable().values()) == {"optical switch ocs0 is lost"}
    assert "ObjectBack" not in reasons(rack)
    rack.switch.away = False
    rack.engine.nics["gpu2"] = True
    after = await again(rack, before)
    assert (after.endpoints, len(rows(rack))) == (("gpu2",), 1)
    await rack.until(lambda: "ObjectBack" in reasons(rack))
    await rack.down()


async def test_a_silent_agent_is_left_alone(spared: Rack) -> None:
    before = await running(spared, **KEEPS)
    spared.engine.lost.add("srv1")
    await asyncio.sleep(30.0)
    assert job_of(spared) == before and not rows(spared)


async def test_a_drained_server_gets_nothing_new_and_its_job_leaves_after_a_checkpoint(
    spared: Rack, kept: FakeCheckpoints
) -> None:
    before = await running(spared, **KEEPS)
    view = await spared.service.desks.drains.drain("node", "srv1", now=False)
    assert view.state == "draining"
    assert "its next protected checkpoint" in view.jobs["red"]
    assert state_of(spared).drains.of["node/srv1"].why == "server srv1 is being drained"
    await spared.until(lambda: "DrainWaits" in reasons(spared))
    assert job_of(spared).epoch == before.epoch
    kept.write("red", 5, before.epoch, ranks=4)
    after = await again(spared, before)
    assert not {"gpu2", "gpu3"} & set(after.endpoints)
    assert rows(spared)[-1].cause == "drain" and rows(spared)[-1].step_restored == 5
    assert state_of(spared).unavailable()["gpu2"] == "server srv1 is being drained"

    async def drained() -> bool:
        return spared.service.desks.drains.views()[0].state == "drained"

    await spared.until(drained)
    assert not {"gpu2", "gpu3"} & state_of(spared).light.quarantine.keys()
    dark = [e for e in before.endpoints if e not in spared.aggregators.light()]
    await spared.service.desks.drains.undrain("node", "srv1")
    await spared.until(lambda: spared.aggregators.light().keys() >= set(dark))
    await spared.until(lambda: not state_of(spared).transactions.running)
    assert "server srv1 is being drained" not in state_of(spared).unavailable().values()
    check(spared)


async def test_what_a_drain_waits_for_is_the_end_of_a_sentence(
    spared: Rack, kept: FakeCheckpoints
) -> None:
    """People read ``job red waits for`` and then this."""
    await running(spared, **KEEPS)
    told = [(await spared.service.desks.drains.drain("node", "srv1", now=True)).jobs["red"]]

    async def drained() -> bool:
        (view,) = spared.service.desks.drains.views()
        told.extend(view.jobs.values())
        return view.state == "drained"

    await spared.until(drained)
    assert set(told) == {"its start elsewhere", "its start elsewhere, which is under way"}


async def test_a_drain_outlives_the_controller(spared: Rack) -> None:
    await spared.service.desks.drains.drain("node", "srv3", now=False)
    await spared.down()
    await spared.up()
    assert [d.object for d in spared.service.desks.drains.views()] == ["node/srv3"]
    with pytest.raises(ServiceError) as caught:
        await spared.service.desks.drains.undrain("node", "srv0")
    assert caught.value.code == "not_found"


async def test_a_drain_waits_for_a_job_that_may_not_be_restarted(spared: Rack) -> None:
    await running(spared, restart="never")
    view = await spared.service.desks.drains.drain("node", "srv1", now=False)
    assert "its end" in view.jobs["red"]
    await spared.until(lambda: "DrainWaits" in reasons(spared))
    assert job_of(spared).state == "running"
    await spared.service.desks.drains.drain("node", "srv1", now=True)
    await spared.state("red", "failed")
    assert "is being drained" in job_of(spared).reason


async def test_a_job_without_checkpoints_leaves_a_drained_server_by_the_queue(
    tmp_path: Path, kept: FakeCheckpoints
) -> None:
    rack = rack_with(tmp_path)
    await rack.up()
    before = await running(rack, "red", 2, endpoints=[])
    server = state_of(rack).cables[before.endpoints[0]].server
    await rack.desks.drains.drain("node", server, now=False)
    after = await again(rack, before)
    assert server not in {state_of(rack).cables[e].server for e in after.endpoints}
    assert "JobPreempted" in reasons(rack) and not rows(rack)
    assert rack.engine.graces["red"] > 0, "its program may save what it has"
    check(rack)
    await rack.down()


async def test_light_leaves_a_drained_aggregator_while_the_job_runs(
    tmp_path: Path, kept: FakeCheckpoints
) -> None:
    rack = rack_with(tmp_path)
    await rack.up()
    before = await running(rack, "red", 1, endpoints=["gpu0"], restart="never")
    await rack.desks.drains.drain("aggregator", "as0", now=False)
    await rack.until(lambda: rack.aggregators.light()["gpu0"].aggregator == "as1")
    await rack.until(lambda: not state_of(rack).transactions.running)
    assert (job_of(rack).epoch, job_of(rack).state) == (before.epoch, "running")
    assert rack.engine.states("red") == {RankState.RUNNING}
    await rack.down()


@pytest.mark.parametrize("code", [137, None], ids=["dead containers", "no containers"])
async def test_a_server_that_restarted_is_no_failure_of_its_job(
    tmp_path: Path, kept: FakeCheckpoints, code: int | None
) -> None:
    """It came back before it counted as lost: the job goes on, though it may not be restarted."""
    rack = rack_with(tmp_path)
    await rack.up()
    before = await running(rack, restart="never", **KEEPS)
    kept.write("red", 7, before.epoch, ranks=4)
    rack.engine.lost.add("srv1")
    await rack.until(lambda: rack.see.away("srv1"))
    for key, status in list(rack.engine.statuses.items()):
        if status.server == "srv1" and code is None:
            del rack.engine.statuses[key]
        elif status.server == "srv1":
            rack.engine.exit(*key, code or 0)
    rack.engine.lost.clear()
    after = await again(rack, before)
    assert after.endpoints == before.endpoints
    row = rows(rack)[-1]
    assert (row.cause, row.how, row.objects) == ("server", "again", ("server/srv1",))
    assert row.step_restored == 7 and after.failures == 0
    assert not state_of(rack).light.quarantine
    check(rack)
    await rack.down()


async def test_a_rank_that_dies_beside_a_server_that_came_back_is_the_jobs_own(
    tmp_path: Path, kept: FakeCheckpoints
) -> None:
    rack = rack_with(tmp_path)
    await rack.up()
    before = await running(rack, restart="on-failure", **KEEPS)
    rack.engine.lost.add("srv1")
    await rack.until(lambda: rack.see.away("srv1"))
    rack.engine.exit("red", 0, 1)
    rack.engine.exit("red", 2, 1)
    rack.engine.lost.clear()
    after = await again(rack, before)
    assert (rows(rack)[-1].cause, after.failures) == ("program", 1)
    await rack.down()


async def drained_dark(rack: Rack, kept: FakeCheckpoints) -> set[str]:
    """Let a job leave a drained server; return the server's endpoints that are dark then."""
    before = await running(rack, **KEEPS)
    kept.write("red", 5, before.epoch, ranks=4)
    await rack.desks.drains.drain("node", "srv1", now=True)
    await again(rack, before)
    await rack.until(lambda: not state_of(rack).transactions.running)
    dark = {"gpu2", "gpu3"} - rack.aggregators.light().keys()
    assert dark
    return dark


async def test_a_controller_that_dies_after_an_undrain_still_gives_the_light_back(
    spared: Rack, kept: FakeCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    dark = await drained_dark(spared, kept)
    with monkeypatch.context() as patched:
        patched.setattr(relight.Relighter, "check", lambda relighter: None)
        await spared.service.desks.drains.undrain("node", "srv1")
        await crash(spared)
    assert not dark & spared.aggregators.light().keys()
    await spared.up()
    await spared.until(lambda: spared.aggregators.light().keys() >= dark)
    await spared.until(lambda: not state_of(spared).drains.unlit)
    await spared.until(lambda: not state_of(spared).transactions.running)
    check(spared)


async def test_light_comes_back_once_a_port_is_free_and_not_where_it_is_unwanted(
    spared: Rack, kept: FakeCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    dark = await drained_dark(spared, kept)
    kept_dark = min(dark)
    state_of(spared).light.detached.add(kept_dark)
    begin, refusals = spared.parts.mover.begin, 0

    def taken(*given: Any, **named: Any) -> Any:
        nonlocal refusals
        refusals += 1
        if refusals < 3:
            raise ServiceError("conflict", "no port is free")
        return begin(*given, **named)

    monkeypatch.setattr(spared.parts.mover, "begin", taken)
    await spared.service.desks.drains.undrain("node", "srv1")
    await spared.until(lambda: spared.aggregators.light().keys() >= dark - {kept_dark})
    await spared.until(lambda: not state_of(spared).drains.unlit)
    assert kept_dark not in spared.aggregators.light(), "an operator has detached it"
    await spared.until(lambda: not state_of(spared).transactions.running)
