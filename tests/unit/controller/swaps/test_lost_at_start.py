"""Hardware is lost while a job starts: it goes on as after any loss, if it is to survive one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentlink.ranks import RankSpec
from controller.devices.engine import EngineError, EngineFault, RankStatus
from tests.parts.controller.engine import FakeEngine
from tests.parts.controller.jobs import events, submit, waiting
from tests.parts.controller.losses import KEEPS, FakeCheckpoints, lose, rack_with, with_checkpoints
from tests.parts.controller.rack import Rack, crash
from tests.parts.controller.recoveries import (
    again,
    check,
    job_of,
    rows,
    running,
    state_of,
)


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> FakeCheckpoints:
    made = FakeCheckpoints()
    with_checkpoints(monkeypatch, made)
    return made


def lose_at_start(rack: Rack, server: str) -> None:
    """Let a server lose its power during the next start."""

    async def start(ranks: Sequence[RankSpec], deadline_s: float) -> list[RankStatus]:
        del rack.engine.start
        lose(rack, server)
        return await rack.engine.start(ranks, deadline_s)

    rack.engine.start = start  # type: ignore[method-assign]


def silent_at_start(rack: Rack, times: int = 1, code: str = "unavailable") -> None:
    """Let an agent restart during the next starts: its ranks' fate is not known at once."""
    left = times

    async def start(ranks: Sequence[RankSpec], deadline_s: float) -> list[RankStatus]:
        nonlocal left
        if left == 1:
            del rack.engine.start
        left -= 1
        raise EngineError([EngineFault(code, "server/srv0", "Stream removed (Socket closed)")])

    rack.engine.start = start  # type: ignore[method-assign]


@pytest.mark.parametrize("restart", ["never", "on-failure:3"])
async def test_an_agent_that_restarts_while_a_job_starts(tmp_path: Path, restart: str) -> None:
    rack = rack_with(tmp_path, "gpu4", "gpu5")
    await rack.up()
    silent_at_start(rack)
    await running(rack, restart=restart)
    assert not rows(rack)
    check(rack)
    await rack.down()


async def test_an_agent_that_restarts_while_a_job_starts_again(tmp_path: Path) -> None:
    rack = rack_with(tmp_path, "gpu4", "gpu5")
    await rack.up()
    before = await running(rack, restart="on-failure:3", **KEEPS)
    silent_at_start(rack)
    rack.engine.exit("red", 0, 1)
    await again(rack, before)
    assert [row.how for row in rows(rack)] == ["queue"]
    assert "Stream removed" in rows(rack)[0].why
    check(rack)
    await rack.down()


@pytest.mark.parametrize(("times", "code"), [(3, "unavailable"), (1, "failed"), (3, "forbidden")])
async def test_a_start_that_a_server_refuses_is_not_the_jobs_end(
    tmp_path: Path, times: int, code: str
) -> None:
    rack = rack_with(tmp_path, "gpu4", "gpu5")
    await rack.up()
    silent_at_start(rack, times, code)
    await submit(rack, "red", 4)
    await rack.state("red", "running")
    check(rack)
    await rack.down()


@pytest.mark.parametrize("asked", [KEEPS, {}], ids=["with checkpoints", "from 0"])
async def test_a_server_that_is_lost_while_its_job_starts_again(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    rack = rack_with(tmp_path, "gpu4", "gpu5")
    await rack.up()
    before = await running(rack, restart="on-failure:3", **asked)
    lose_at_start(rack, "srv1")
    rack.engine.exit("red", 0, 1)
    after = await again(rack, before)
    assert after.endpoints[:2] == ("gpu0", "gpu1")
    assert set(after.endpoints[2:]) == {"gpu4", "gpu5"}
    assert after.failures == 1, "its own death counts, the loss does not"
    own, lost = rows(rack)
    assert (own.cause, lost.cause, lost.objects) == ("program", "server", ("server/srv1",))
    check(rack)
    await rack.down()


async def test_without_a_spare_it_waits_in_the_queue(tmp_path: Path) -> None:
    rack = rack_with(tmp_path)
    await rack.up()
    before = await running(rack, restart="on-failure:3", endpoints=[])
    lost = state_of(rack).cables[before.endpoints[0]].server
    lose_at_start(rack, lost)
    rack.engine.exit("red", 0, 1)
    after = await again(rack, before)
    assert rows(rack)[-1].how == "queue"
    assert lost not in {state_of(rack).cables[e].server for e in after.endpoints}
    check(rack)
    await rack.down()


@pytest.mark.parametrize("survives", [True, False])
async def test_a_server_that_is_lost_while_its_job_first_starts(
    tmp_path: Path, survives: bool
) -> None:
    rack = rack_with(tmp_path, "gpu4", "gpu5")
    await rack.up()
    lose_at_start(rack, "srv1")
    endpoints = ["gpu0", "gpu1", "gpu2", "gpu3"]
    await submit(rack, "red", 4, endpoints=endpoints, **(KEEPS if survives else {}))
    if survives:
        await rack.state("red", "running")
    else:  # its place is away, it waits for it

        async def told_so() -> bool:
            return bool(await events(rack, "NotStarted"))

        await rack.until(told_so)
        (told,) = await events(rack, "NotStarted")
        assert "srv1" in told
        assert job_of(rack).failures == 0
        await asyncio.sleep(60)
        (red,) = await waiting(rack, "red")
        assert (red.state, red.reason) == ("pending", "gpu2 is unavailable")
    if survives:
        assert set(job_of(rack).endpoints) == {"gpu0", "gpu1", "gpu4", "gpu5"}
        await rack.until(lambda: not rack.see.recovers("red"))
        check(rack)
    await rack.down()


async def test_a_program_that_cannot_start_again_is_no_loss(tmp_path: Path) -> None:
    rack = rack_with(tmp_path, "gpu5")
    await rack.up()
    await running(rack, **KEEPS, restart="on-failure:3")
    rack.engine.broken.add("start")
    rack.engine.exit("red", 0, 1)
    await rack.state("red", "failed")
    assert "did not start: job/red: start broke" in job_of(rack).reason
    await rack.down()


async def test_the_controller_dies_during_the_start_and_the_server_never_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rack = rack_with(tmp_path, "gpu4", "gpu5")
    await rack.up()
    before = await running(rack, restart="on-failure:3", **KEEPS)
    hangs = asyncio.Event()
    stop = FakeEngine.stop

    async def never(ranks: Sequence[RankSpec], deadline_s: float) -> list[RankStatus]:
        hangs.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def refused(
        engine: FakeEngine,
        job: str,
        grace_s: float,
        servers: Collection[str] | None = None,
        *,
        until: int | None = None,
    ) -> list[RankStatus]:
        if servers is None and engine.lost:
            raise EngineError([EngineFault("unavailable", f"server/{min(engine.lost)}", "away")])
        return await stop(engine, job, grace_s, servers, until=until)

    rack.engine.start = never  # type: ignore[method-assign]
    rack.engine.exit("red", 0, 1)
    await asyncio.wait_for(hangs.wait(), 60)
    lose(rack, "srv1")
    await crash(rack)
    del rack.engine.start
    monkeypatch.setattr(FakeEngine, "stop", refused)

    async def degraded(rack: Rack) -> bool:
        return True

    monkeypatch.setattr(Rack, "whole", degraded)
    await rack.up()
    after = await again(rack, before)
    assert set(after.endpoints) == {"gpu0", "gpu1", "gpu4", "gpu5"}
    assert rows(rack)[-1].cause == "server"
    check(rack)
    await rack.down()
