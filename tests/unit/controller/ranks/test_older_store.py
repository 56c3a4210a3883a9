"""An older copy of the store: healthy runs that it does not know go on, and none lives twice."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace

import pytest

from controller.base.errors import ServiceError
from controller.devices.engine import RankState
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack

FILES = "controller.sqlite*"


async def copied(rack: Rack) -> None:
    """Keep a copy of the store, as an operator does, and go on."""
    await rack.down()
    kept = rack.state_dir / "copy"
    kept.mkdir()
    for file in rack.state_dir.glob(FILES):
        shutil.copy(file, kept)
    await rack.up()


async def restored(rack: Rack, *, take_command: bool = True) -> None:
    """Put the copy in place and start a controller; it need not become healthy."""
    await rack.down()
    for file in rack.state_dir.glob(FILES):
        file.unlink()
    for file in (rack.state_dir / "copy").iterdir():
        shutil.copy(file, rack.state_dir)
    whole = rack.whole
    rack.whole = lambda: ready(rack)  # type: ignore[method-assign]
    try:
        await rack.up(take_command=take_command)
    finally:
        rack.whole = whole  # type: ignore[method-assign]


async def ready(rack: Rack) -> bool:
    return rack.desks.health.health().status != "starting"


async def moved(rack: Rack) -> tuple[str, ...]:
    """Have red go on on other endpoints, in a later run; return these."""
    first = rack.desks.jobs.job("red")
    server = rack.site.endpoint(first.endpoints[0]).server
    await rack.desks.drains.drain("node", server, now=True)
    await rack.until(lambda: rack.engine.calls.count(("start", "red")) == 2)
    await rack.state("red", "running")
    return rack.desks.jobs.job("red").endpoints


def told(rack: Rack, reason: str) -> list[str]:
    return [e.message for e in rack.parts.state.events.since(0, 10_000) if e.reason == reason]


async def begun(rack: Rack) -> None:
    await submit(rack, "red", 2, restart="on-failure:9")
    await rack.state("red", "running")


async def test_a_job_that_has_moved_since_the_copy_goes_on_where_it_is(rack: Rack) -> None:
    await begun(rack)
    await copied(rack)
    there = await moved(rack)
    calls = list(rack.engine.calls)
    ranks = dict(rack.engine.statuses)
    await restored(rack)
    await rack.until(lambda: told(rack, "LaterRunAdopted"))
    await rack.until(rack.whole)
    job = rack.desks.jobs.job("red")
    assert (job.state, job.endpoints) == ("running", there)
    assert rack.engine.calls == calls, "nothing was stopped or started"
    assert rack.engine.statuses == ranks
    await rack.down()
    await rack.up()
    again = rack.desks.jobs.job("red")
    assert (again.state, again.endpoints, again.epoch) == ("running", there, job.epoch)


async def test_a_job_that_waited_in_the_copy_goes_on_where_it_runs(rack: Rack) -> None:
    await submit(rack, "blue", 6)
    await rack.state("blue", "running")
    await submit(rack, "red", 2)
    await copied(rack)
    await rack.desks.jobs.cancel("blue")
    await rack.state("red", "running")
    there = rack.desks.jobs.job("red").endpoints
    starts = rack.engine.calls.count(("start", "red"))
    await restored(rack)
    await rack.state("red", "running")
    assert rack.desks.jobs.job("red").endpoints == there
    assert rack.engine.calls.count(("start", "red")) == starts


async def test_a_later_run_that_is_not_whole_is_kept_until_an_operator_decides(rack: Rack) -> None:
    await begun(rack)
    await copied(rack)
    there = await moved(rack)
    lacking = ("red", 1)
    rank = rack.engine.statuses[lacking]
    rack.engine.statuses[lacking] = replace(rank, state=RankState.EXITED, exit_code=1)
    calls = list(rack.engine.calls)
    await restored(rack)
    await rack.until(lambda: told(rack, "LaterRun"))
    assert "lightloom cancel red" in told(rack, "LaterRun")[0]
    await asyncio.sleep(60)
    assert rack.engine.calls == calls, "nothing was stopped or started"
    assert there[0] in rack.see.light.squatted
    await rack.desks.jobs.cancel("red")
    assert not [s for s in await rack.engine.observe() if s.job == "red"]
    await rack.until(rack.whole)


async def test_ranks_of_a_later_run_elsewhere_take_nothing_from_a_run_that_lives(
    rack: Rack,
) -> None:
    """What one server says of a job ends no ranks on others."""
    await begun(rack)
    job = rack.desks.jobs.job("red")
    free = [e.name for e in rack.site.endpoints if e.name not in job.endpoints][:2]
    for rank, endpoint in enumerate(free):
        mine = rack.engine.statuses["red", rank]
        server = rack.site.endpoint(endpoint).server
        late = replace(mine, epoch=mine.epoch + 9, endpoint=endpoint, server=server)
        rack.engine.hanging.append(late)
    await rack.until(lambda: told(rack, "LaterRun"))
    await asyncio.sleep(60)
    now = rack.desks.jobs.job("red")
    assert (now.state, now.endpoints) == ("running", job.endpoints)
    assert ("stop", "red") not in rack.engine.calls


async def test_taking_command_begins_no_run_that_a_silent_server_may_know(rack: Rack) -> None:
    await begun(rack)
    first = rack.see.epoch
    await copied(rack)
    await restored(rack)
    assert rack.see.epoch >= first + 2**20


async def test_an_acceptance_counts_when_it_is_durable(rack: Rack) -> None:
    """Steps would be dropped meanwhile, and it may be refused."""
    await begun(rack)
    await copied(rack)
    await restored(rack)
    ranges = rack.parts.state.unknown.ranges
    rack.disk.fault = "slow"
    accepting = asyncio.create_task(rack.desks.health.accept_store())
    await rack.until(lambda: rack.disk.hit)
    assert rack.parts.state.unknown.ranges == ranges
    rack.disk.release()
    await accepting
    assert not rack.parts.state.unknown
    await rack.down()
    await rack.up()
    assert not rack.parts.state.unknown


async def test_an_acceptance_that_the_disk_refuses_changes_nothing(rack: Rack) -> None:
    await begun(rack)
    await copied(rack)
    await restored(rack)
    ranges = rack.parts.state.unknown.ranges
    rack.disk.fault = "refused"
    with pytest.raises(ServiceError):
        await rack.desks.health.accept_store()
    rack.disk.release()
    assert rack.parts.state.unknown.ranges == ranges
    await rack.down()
    await rack.up()
    assert rack.parts.state.unknown.ranges == ranges
