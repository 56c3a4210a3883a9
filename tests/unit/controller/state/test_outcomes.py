"""A whole controller on a faulty disk: nothing reported is lost, nothing refused happens.

Each test ends with the disk repaired and the controller restarted: users must then see what was
reported to them before.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from controller.base import failpoints
from controller.base.errors import ServiceError
from controller.reconcile.interrupted import Interrupted
from controller.schema.plans import PlanRequest
from controller.state import journal
from tests.parts.controller.disk import FAULTS, Fault
from tests.parts.controller.jobs import scattered, submit
from tests.parts.controller.rack import Rack, crash

REFUSALS = [fault for fault in FAULTS if fault != "torn"]
"""With ``torn`` the store finds that the write is durable: nothing is refused."""


async def mended(rack: Rack) -> None:
    """Repair the disk and wait until the controller is healthy again by itself."""
    rack.disk.release()

    async def well() -> bool:
        return rack.desks.health.health().status == "ok"

    await rack.until(well)


async def restarted(rack: Rack) -> None:
    await crash(rack)
    await rack.up()


def faulty_from(rack: Rack, point: str, fault: Fault) -> Callable[[str], Awaitable[None]]:
    """Return a hook that makes the disk fail from ``point`` on."""

    async def hook(passed: str) -> None:
        if passed == point:
            rack.disk.fault = fault

    return hook


@pytest.mark.parametrize("fault", REFUSALS)
async def test_a_job_that_was_refused_never_runs(rack: Rack, fault: Fault) -> None:
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    rack.disk.fault = fault
    with pytest.raises(ServiceError):
        await submit(rack, "ghost", 1)
    assert "ghost" not in {job.name for job in await rack.desks.jobs.jobs()}
    await mended(rack)
    await submit(rack, "blue", 2)
    await rack.state("blue", "running")
    await restarted(rack)
    assert {job.name: job.state for job in await rack.desks.jobs.jobs()} == {
        "red": "running",
        "blue": "running",
    }


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("point", ["log-admit", "log-proven", "log-commit"])
async def test_an_end_that_could_not_be_written_is_not_replayed(
    rack: Rack, fault: Fault, point: str
) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    with failpoints.hooked(faulty_from(rack, f"{point}.before", fault)):
        first = await rack.desks.plans.apply(plan, wait_s=3 * journal.COMMIT_TIMEOUT_S)
        await rack.until(lambda: rack.disk.fault != "")
        rack.disk.release()

        async def over() -> bool:
            return rack.desks.plans.transaction(first.id).finished_at is not None

        await rack.until(over)
    reported = rack.desks.plans.transaction(first.id)
    await mended(rack)
    again = await rack.desks.plans.make_plan(PlanRequest())
    if again.moves:
        assert (await rack.desks.plans.apply(again, wait_s=60)).state == "committed"
    homes = {e.name: e.home for e in await rack.desks.fabric.endpoints()}
    applied = len(rack.switch.applied)
    await restarted(rack)
    assert len(rack.switch.applied) == applied, "no light was moved by the restart"
    assert {e.name: e.home for e in await rack.desks.fabric.endpoints()} == homes
    assert rack.desks.plans.transaction(first.id).state == reported.state
    assert rack.desks.jobs.job("red").excess_span == 0
    assert "Recovered" not in {e.reason for e in rack.parts.state.events.since(0, 10_000)}


@pytest.mark.parametrize("fault", REFUSALS)
async def test_a_cancel_is_answered_when_it_is_durable(rack: Rack, fault: Fault) -> None:
    await submit(rack, "red", 2, restart="on-failure")
    await rack.state("red", "running")
    rack.disk.fault = fault
    with pytest.raises(ServiceError, match="its end is not written"):
        await rack.desks.jobs.cancel("red")
    assert not rack.engine.statuses
    assert rack.desks.jobs.job("red").state == "running"
    await mended(rack)
    await rack.state("red", "cancelled")
    calls = len(rack.engine.calls)
    await restarted(rack)
    assert rack.desks.jobs.job("red").state == "cancelled"
    assert rack.engine.calls[calls:] == []


@pytest.mark.parametrize("fault", REFUSALS)
async def test_a_waiting_job_whose_cancel_was_refused_continues_to_wait(
    rack: Rack, fault: Fault
) -> None:
    await submit(rack, "green", 6)
    await rack.state("green", "running")
    await submit(rack, "red", 2)
    rack.disk.fault = fault
    with pytest.raises(ServiceError, match="is not cancelled"):
        await rack.desks.jobs.cancel("red")
    await mended(rack)
    assert rack.desks.jobs.job("red").state == "pending"
    await restarted(rack)
    assert rack.desks.jobs.job("red").state == "pending"


@pytest.mark.parametrize("fault", REFUSALS)
async def test_endpoints_of_a_job_that_ended_on_a_full_disk_are_given_again(
    rack: Rack, fault: Fault
) -> None:
    await submit(rack, "red", 6)
    await rack.state("red", "running")
    await submit(rack, "blue", 6)
    rack.disk.fault = fault
    for rank in range(6):
        rack.engine.exit("red", rank, 0)
    await rack.until(lambda: rack.see.store_error)
    assert rack.desks.jobs.job("red").state == "running", "an end is announced when it is durable"
    await mended(rack)
    await rack.state("red", "completed")
    await rack.state("blue", "running")
    await restarted(rack)
    assert rack.desks.jobs.job("red").state == "completed"
    assert rack.desks.jobs.job("blue").state == "running"


@pytest.mark.parametrize("fault", REFUSALS)
async def test_a_pause_that_was_refused_is_undone(rack: Rack, fault: Fault) -> None:
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    rack.disk.fault = fault
    with pytest.raises(ServiceError):
        await rack.desks.jobs.pause("red")
    assert rack.desks.jobs.job("red").state == "running"
    assert {state.value for state in rack.engine.states("red")} == {"running"}
    await mended(rack)
    await restarted(rack)
    assert rack.desks.jobs.job("red").state == "running"


@pytest.mark.parametrize("fault", REFUSALS)
async def test_a_release_that_was_refused_keeps_the_port_out_of_use(
    rack: Rack, fault: Fault
) -> None:
    rack.engine.sick = {"gpu5": "its GPU is lost"}
    await rack.until(lambda: "gpu5" in rack.see.light.quarantine)
    await rack.until(lambda: not rack.see.owes)
    rack.engine.sick = {}
    rack.disk.fault = fault
    with pytest.raises(ServiceError):
        await rack.desks.quarantine.release("gpu5")
    await mended(rack)
    assert "gpu5" in rack.see.light.quarantine
    await restarted(rack)
    assert "gpu5" in rack.see.light.quarantine


async def test_a_log_with_an_end_that_was_never_written_is_not_replayed(rack: Rack) -> None:
    """Such databases exist: a later transaction moved the endpoints, the old row stayed open."""
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    first = await rack.desks.plans.apply(plan, wait_s=60)
    assert first.state == "committed"
    for job in ("red", "blue"):
        await rack.desks.jobs.cancel(job)
    move = plan.moves[0]
    back = await rack.desks.plans.attach(move.endpoint, move.source, 60)
    assert back.state == "committed"
    homes = {e.name: e.home for e in await rack.desks.fabric.endpoints()}
    await crash(rack)
    with sqlite3.connect(rack.state_dir / "controller.sqlite") as db:
        body = '{"finished_at": null, "state": "running", "phase": "commit"}'
        db.execute(
            "UPDATE transactions SET finished = 0, body = json_patch(body, ?) WHERE id = ?",
            (body, first.id),
        )
    applied = len(rack.switch.applied)
    await rack.up()
    await rack.until(rack.service.recovered.is_set)
    assert len(rack.switch.applied) == applied
    assert {e.name: e.home for e in await rack.desks.fabric.endpoints()} == homes


async def test_a_transaction_that_later_ones_have_overtaken_whole_is_void(rack: Rack) -> None:
    await submit(rack, "red", 1, endpoints=["gpu0"])
    await rack.state("red", "running")
    first = await rack.desks.plans.attach("gpu0", "as1", 60)
    await rack.desks.plans.attach("gpu0", "as0", 60)
    intents = {
        view.id: (view, intent)
        for view, intent in (await rack.store.load()).transactions
        if view.started_at >= first.started_at
    }
    view, intent = intents[first.id]
    unfinished = replace(view, finished_at=None, state="running")
    loaded = replace(
        await rack.store.load(),
        transactions=((unfinished, intent), *(e for i, e in intents.items() if i != first.id)),
    )
    interrupted = Interrupted(rack.parts.state)
    interrupted.restore(loaded)
    assert not interrupted and not interrupted.owed and not rack.see.jobs.owed
    assert "overtook" in rack.desks.plans.transaction(first.id).result
