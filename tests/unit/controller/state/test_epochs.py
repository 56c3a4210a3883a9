"""No epoch is used twice: not after a counter that lags behind, nor with an older store."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

from agentlink.checkpoints import Holding, HoldingKind
from checkpoints.ledger import Key
from controller.devices.reports import FURTHEST, Reports
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack, crash


def older(rack: Rack, *more: str) -> None:
    """Make the store of a dead controller one that lags behind."""
    with sqlite3.connect(rack.state_dir / "controller.sqlite") as db:
        db.execute("UPDATE facts SET value = '0' WHERE key = 'epoch'")
        for statement in more:
            db.execute(statement)


@contextlib.asynccontextmanager
async def begun(rack: Rack) -> AsyncIterator[None]:
    """Start a controller whose site is not whole: of which it does not know all containers."""
    starting = asyncio.create_task(rack.up())
    await asyncio.sleep(0.01)
    await rack.until(lambda: rack.parts.state.ready)
    yield
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)


async def epoch_of(rack: Rack, job: str) -> int:
    await rack.state(job, "running")
    return rack.parts.state.jobs[job].epoch


async def test_the_epoch_is_above_every_row_of_the_store(rack: Rack) -> None:
    await submit(rack, "red", 2)
    red = await epoch_of(rack, "red")
    await crash(rack)
    older(rack)
    await rack.up()
    await submit(rack, "blue", 2)
    assert await epoch_of(rack, "blue") > red


async def test_the_epoch_is_above_every_container(rack: Rack) -> None:
    await submit(rack, "red", 2)
    red = await epoch_of(rack, "red")
    await crash(rack)
    older(rack, "DELETE FROM jobs", "DELETE FROM attachments")
    async with begun(rack):
        await submit(rack, "blue", 2)
        assert await epoch_of(rack, "blue") > red
    assert "EpochRaised" in {event.reason for event in rack.parts.state.events.since(0, 1000)}


async def test_the_epoch_is_above_every_checkpoint(rack: Rack) -> None:
    state = rack.parts.state
    endpoint = rack.site.endpoints[0]
    key = Key(step=7, epoch=state.epoch + 40)
    rack.engine.kept.say(
        Holding(
            server=endpoint.server,
            folder="lost.00000001",
            key=key,
            rank=0,
            endpoint=endpoint.name,
            kind=HoldingKind.OWN,
        )
    )
    await rack.until(lambda: state.epoch >= key.epoch)
    await submit(rack, "red", 2)
    assert await epoch_of(rack, "red") > key.epoch


async def test_no_rank_starts_before_every_server_has_reported(tmp_path: Path) -> None:
    """A server comes back with containers of an epoch that the store does not know."""
    rack = Rack(tmp_path)
    await rack.up()
    away = rack.site.endpoints[0].server
    await submit(rack, "red", 1, endpoints=[rack.site.endpoints[0].name])
    red = await epoch_of(rack, "red")
    await crash(rack)
    older(rack, "DELETE FROM jobs", "DELETE FROM attachments")
    rack.engine.lost.add(away)
    async with begun(rack):
        state = rack.parts.state
        await submit(rack, "green", 1)
        await asyncio.sleep(rack.site.recovery.lost_after_s / 2)
        assert away in state.reports.missing
        assert state.jobs["green"].state == "pending"
        rack.engine.lost.clear()
        rack.engine.kept.back(away)
        assert await epoch_of(rack, "green") > red
    await rack.down()


async def test_a_server_that_stays_silent_is_not_waited_for(tmp_path: Path) -> None:
    rack = Rack(tmp_path)
    rack.engine.lost.add(rack.site.servers[0].name)
    async with begun(rack):
        await submit(rack, "red", 1)
        await rack.state("red", "running")
    await rack.down()


def test_a_server_that_lies_cannot_use_the_epochs_up() -> None:
    reports = Reports(["srv0"], 1.0, lambda: 0.0)
    reports.begin(5)
    assert reports.highest([3, 5 + FURTHEST, 1 << 62]) == 5 + FURTHEST
    assert reports.highest([1 << 62]) == 0
