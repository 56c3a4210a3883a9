"""The controller's reaction to dead ranks, lost GPUs and silent servers, over fakes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from pydantic import ValidationError

from base import clock
from controller.devices.engine import RankState, RankStatus
from controller.schema.fabric import EndpointView
from controller.schema.jobs import read_job
from tests.parts.controller.jobs import events, submit, until
from tests.parts.controller.rack import Rack


async def test_a_job_restarts_until_its_policy_is_exhausted(rack: Rack) -> None:
    await submit(rack, "red", 2, restart="on-failure:2")
    before = await until(rack, "red", state="running", restarts=0)
    for times in (1, 2):
        rack.engine.exit("red", 1, 7)
        again = await until(rack, "red", state="running", restarts=times)
        assert again.endpoints == before.endpoints
        assert again.epoch > before.epoch
    rack.engine.exit("red", 0, 9)
    end = await until(rack, "red", state="failed")
    assert end.reason == "rank 0 exited with code 9; restarted 2 times already"
    told = await events(rack, "JobRestarting")
    assert [text.partition(";")[0] for text in told] == ["rank 1 exited with code 7"] * 2
    assert "restart 2 of 2" in told[1]


async def test_without_a_policy_one_ranks_death_ends_the_job(rack: Rack) -> None:
    await submit(rack, "red", 2)
    await until(rack, "red", state="running")
    rack.engine.exit("red", 1, 137)
    assert (await until(rack, "red", state="failed")).restarts == 0


async def test_a_job_whose_ranks_all_succeed_completes(rack: Rack) -> None:
    await submit(rack, "red", 2, restart="on-failure")
    await until(rack, "red", state="running")
    rack.engine.exit("red", 0, 0)
    rack.engine.exit("red", 1, 0)
    assert (await until(rack, "red", state="completed")).restarts == 0


async def test_a_job_that_waits_to_start_again_can_be_cancelled(rack: Rack) -> None:
    await submit(rack, "red", 2, restart="on-failure")
    await until(rack, "red", state="running")
    rack.engine.exit("red", 0, 1)
    waiting = await until(rack, "red", state="starting")
    assert "restart 1 of 3 in 1 s" in waiting.reason
    async with asyncio.timeout(60):
        await rack.desks.jobs.cancel("red")
    assert rack.desks.jobs.job("red").state == "cancelled"
    assert not rack.engine.holds("gpu0")


@pytest.mark.parametrize("restart", ["always", "on-failure:0", ""])
def test_an_invalid_policy_is_refused(restart: str) -> None:
    with pytest.raises(ValidationError):
        read_job({"count": 1, "restart": restart})


async def test_a_lost_gpu_is_quarantined_and_the_job_goes_elsewhere(rack: Rack) -> None:
    await submit(rack, "red", 2, restart="on-failure")
    before = await until(rack, "red", state="running")
    gone = before.endpoints[0]
    key = next(k for k, s in rack.engine.statuses.items() if s.endpoint == gone)
    rack.engine.sick[gone] = "the GPU is lost"
    rack.engine.statuses[key] = replace(
        rack.engine.statuses[key], reason=rack.engine.sick[gone], fault="lost"
    )
    await until(rack, "red", state="running", restarts=0, count=2)

    async def elsewhere() -> bool:
        after = rack.desks.jobs.job("red")
        return gone not in after.endpoints and after.state == "running"

    await rack.until(elsewhere)
    states = {e.name: e.state for e in await rack.desks.fabric.endpoints()}
    assert states[gone] not in ("idle", "busy")
    others = {n: s for n, s in states.items() if n != gone}
    assert set(others.values()) == {"idle", "busy"}
    assert await events(rack, "Quarantined") == ["the GPU is lost"]


async def test_a_driver_that_hangs_briefly_ends_no_job(rack: Rack) -> None:
    await submit(rack, "red", 2)
    running = await until(rack, "red", state="running")
    idle = next(
        e.name for e in await rack.desks.fabric.endpoints() if e.name not in running.endpoints
    )
    rack.engine.sick = dict.fromkeys((running.endpoints[0], idle), "NVML hangs on this GPU")
    key = next(k for k, s in rack.engine.statuses.items() if s.endpoint == running.endpoints[0])
    rack.engine.statuses[key] = replace(rack.engine.statuses[key], reason="NVML hangs")

    async def is_idle() -> bool:
        return (await endpoint(rack, idle)).state == "idle"

    async def is_not_idle() -> bool:
        return not await is_idle()

    await rack.until(is_not_idle)
    assert rack.desks.jobs.job("red").state == "running"
    rack.engine.sick = {}
    await rack.until(is_idle)
    assert await events(rack, "Quarantined") == []


async def test_a_driver_that_does_not_work_keeps_new_jobs_away_and_nothing_else(
    rack: Rack,
) -> None:
    await submit(rack, "red", 2)
    await until(rack, "red", state="running")
    names = [e.name for e in await rack.desks.fabric.endpoints()]
    why = "NVML does not work: Driver/library version mismatch"
    rack.engine.driverless = dict.fromkeys(names, why)
    await asyncio.sleep(5)
    await submit(rack, "blue", 1)
    await asyncio.sleep(60)
    assert rack.desks.jobs.job("red").state == "running"
    assert rack.desks.jobs.job("blue").state == "pending"
    idle = [e for e in await rack.desks.fabric.endpoints() if e.job is None]
    assert {e.reason for e in idle} == {why}
    rack.engine.driverless = {}
    await until(rack, "blue", state="running")
    assert await events(rack, "Quarantined") == []


async def endpoint(rack: Rack, name: str) -> EndpointView:
    return next(e for e in await rack.desks.fabric.endpoints() if e.name == name)


async def test_a_lost_gpu_without_a_policy_fails_the_job_and_says_why(rack: Rack) -> None:
    await submit(rack, "red", 2)
    running = await until(rack, "red", state="running")
    key = next(k for k, s in rack.engine.statuses.items() if s.endpoint == running.endpoints[1])
    rack.engine.statuses[key] = replace(
        rack.engine.statuses[key], reason="Xid 79: fell off", fault="xid"
    )
    assert (await until(rack, "red", state="failed")).reason == "rank 1: Xid 79: fell off"


async def test_a_cancel_ends_even_if_a_server_never_answers(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit(rack, "red", 2)
    await until(rack, "red", state="running")

    async def never(job: str, grace_s: float, *, until: int | None = None) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(rack.engine, "stop", never)
    async with asyncio.timeout(60):
        await rack.desks.jobs.cancel("red")
    job = rack.desks.jobs.job("red")
    assert job.state == "cancelled"
    assert "not every container stopped" in job.reason
    assert await events(rack, "NotStopped")


async def test_every_start_of_a_controller_is_a_new_term(rack: Rack) -> None:
    assert rack.engine.term == 1
    await rack.down()
    await rack.up()
    assert rack.engine.term == 2


async def test_a_failed_job_names_its_first_cause_also_after_a_restart(rack: Rack) -> None:
    await submit(rack, "red", 3)
    await until(rack, "red", state="running")
    rack.engine.output["red", 1] = tuple(f"step {n}" for n in range(30))
    rack.engine.ends["red"] = {0: 143, 2: 143}
    rack.engine.exit("red", 1, 3)
    failure = (await until(rack, "red", state="failed")).failure
    assert failure is not None
    assert (failure.rank, failure.exit_code, failure.cause) == (1, 3, "rank 1 exited with code 3")
    assert failure.others == "lightloom stopped ranks 0, 2"
    assert failure.lines == [f"step {n}" for n in range(10, 30)]
    await rack.down()
    await rack.up()
    assert rack.desks.jobs.job("red").failure == failure
    (listed,) = await rack.desks.jobs.jobs()
    assert listed.failure == failure.model_copy(update={"lines": None})


async def test_a_follower_is_not_blamed(rack: Rack) -> None:
    """Rank 1 fails; rank 0, on another server with a clock that is behind, seems to be earlier."""
    await submit(rack, "red", 2)
    await until(rack, "red", state="running")
    rack.engine.output["red", 0] = ("Connection reset by peer",)
    now = clock.time()
    for rank, at in ((0, now - 0.4), (1, now)):
        status = rack.engine.statuses["red", rank]
        rack.engine.statuses["red", rank] = replace(
            status, state=RankState.EXITED, exit_code=1, finished_at=at
        )
    job = await until(rack, "red", state="failed")
    assert job.failure is not None
    assert (job.failure.rank, job.reason) == (1, "rank 1 exited with code 1")
    assert job.failure.others == "rank 0 lost the connection to another rank"
    assert await events(rack, "JobFailed") == ["rank 1 exited with code 1"]


async def test_last_lines_are_read_once_the_server_is_back(rack: Rack) -> None:
    await submit(rack, "red", 1)
    job = await until(rack, "red", state="running")
    server = job.ranks[0].server
    logs = rack.engine.logs

    def silent(*args: object, **given: object) -> object:
        rack.engine.lost.add(server)  # from now on
        return logs(*args, **given)  # type: ignore[arg-type]

    rack.engine.logs = silent  # type: ignore[method-assign, assignment]
    rack.engine.exit("red", 0, 3)
    failure = (await until(rack, "red", state="failed")).failure
    assert failure is not None
    assert failure.lines == []
    assert failure.unread == f"{server} does not answer"
    rack.engine.logs = logs  # type: ignore[method-assign]
    await rack.down()
    rack.engine.lost.clear()
    await rack.up()

    async def read() -> bool:
        failure = rack.desks.jobs.job("red").failure
        return failure is not None and not failure.unread

    await rack.until(read)
    failure = rack.desks.jobs.job("red").failure
    assert failure is not None
    assert failure.lines == ["one", "two"]
    await rack.down()
    await rack.up()
    assert rack.desks.jobs.job("red").failure == failure


async def test_a_job_that_completes_after_a_restart_shows_no_failure(rack: Rack) -> None:
    await submit(rack, "red", 1, restart="on-failure")
    await until(rack, "red", state="running")
    rack.engine.exit("red", 0, 3)
    again = await until(rack, "red", state="running", restarts=1)
    assert again.failure is not None
    assert again.failure.cause == "rank 0 exited with code 3"
    rack.engine.exit("red", 0, 0)
    assert (await until(rack, "red", state="completed")).failure is None


async def test_the_cause_survives_a_crash_while_the_job_is_stopped(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The containers are gone then, and only the store knows why the job failed."""
    await submit(rack, "red", 2)
    await until(rack, "red", state="running")
    stopping = asyncio.Event()
    stop = rack.engine.stop

    async def never(job: str, grace_s: float, *, until: int | None = None) -> list[RankStatus]:
        await stop(job, grace_s, until=until)
        stopping.set()
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(rack.engine, "stop", never)
    rack.engine.exit("red", 1, 3)
    async with asyncio.timeout(60):
        await stopping.wait()
    await rack.down()
    monkeypatch.setattr(rack.engine, "stop", stop)
    await rack.up()
    job = await until(rack, "red", state="failed")
    assert job.reason == "rank 1 exited with code 3"
    assert job.failure is not None
    assert job.failure.lines == ["one", "two"]
