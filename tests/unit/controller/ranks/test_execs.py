"""Commands in ranks of real jobs over fakes: where they may run, and where their server is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from agentlink.values import Typed, WindowSize
from controller.base.errors import ServiceError
from controller.devices.engine import ExecEnd, ExecOutput, RankState
from controller.schema.execs import ExecRequest, WindowRequest
from tests.parts.controller.jobs import scattered, submit
from tests.parts.controller.rack import Rack


async def nothing() -> AsyncIterator[Typed | WindowSize]:
    yield Typed(None)


async def run(rack: Rack, rank: int = 0, job: str = "red") -> list[ExecOutput | ExecEnd]:
    request = ExecRequest(
        rank=rank, command=["ls", "-l"], window=WindowRequest(rows=24, columns=80)
    )
    async with aclosing(await rack.desks.jobs.exec(job, request, nothing())) as pieces:
        return [piece async for piece in pieces]


async def refused(rack: Rack, rank: int = 0, job: str = "red") -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await run(rack, rank, job)
    return caught.value


async def test_every_rank_of_a_scattered_job_is_reached_on_its_own_server(rack: Rack) -> None:
    await scattered(rack)
    job = rack.desks.jobs.job("red")
    for rank in range(job.count):
        assert await run(rack, rank) == [ExecOutput("stdout", b"ls -l"), ExecEnd(0)]
    servers = [start.server for start in rack.engine.execs]
    assert servers == [view.server for view in job.ranks]
    assert len(set(servers)) > 1
    start = rack.engine.execs[0]
    assert (start.idle_s, start.total_s) == (900, 8 * 3600)
    assert start.window == WindowSize(24, 80)


async def test_a_job_that_cannot_run_a_command_says_why(rack: Rack) -> None:
    assert (await refused(rack)).code == "not_found"
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    missing = await refused(rack, 2)
    assert (missing.code, missing.object) == ("not_found", "job/red/rank/2")
    await rack.desks.jobs.pause("red")
    paused = await refused(rack)
    assert paused.code == "conflict"
    assert paused.hint == "resume it first: lightloom resume red"
    await rack.desks.jobs.resume("red")
    await run(rack)
    await rack.desks.jobs.cancel("red")
    assert "it is cancelled, not running" in (await refused(rack)).message
    assert len(rack.engine.execs) == 1


async def test_a_job_that_waits_has_no_rank_yet(rack: Rack) -> None:
    await submit(rack, "red", 6)
    await rack.state("red", "running")
    await submit(rack, "blue", 2)
    assert "it is pending" in (await refused(rack, job="blue")).message


async def test_a_command_that_was_prepared_before_a_pause_does_not_begin_after_it(
    rack: Rack,
) -> None:
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    pieces = await rack.desks.jobs.exec("red", ExecRequest(command=["true"]), nothing())
    await rack.desks.jobs.pause("red")
    with pytest.raises(ServiceError, match="it is paused"):
        await anext(pieces)
    assert rack.engine.execs == []


async def test_an_error_of_the_agent_is_the_users(rack: Rack) -> None:
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    await rack.engine.freeze("red")  # by another program
    assert rack.engine.statuses["red", 0].state is RankState.PAUSED
    error = await refused(rack)
    assert (error.code, error.object) == ("conflict", "job/red")
    assert "it is frozen" in error.message


async def test_a_controller_that_lost_command_runs_nothing(rack: Rack) -> None:
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    rack.parts.state.command_lost = "a newer controller commands the site"
    assert (await refused(rack)).code == "forbidden"
    assert rack.engine.execs == []


async def test_commands_run_after_a_restart_of_the_controller(rack: Rack) -> None:
    await submit(rack, "red", 2)
    await rack.state("red", "running")
    await rack.down()
    await rack.up()
    assert (await run(rack, 1))[-1] == ExecEnd(0)
