"""The keeper over a controller with fakes: starts, copies, losses, restarts, ended jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from agentlink.ranks import RankSpec
from checkpoints.ledger import Key
from controller.devices.engine import RankState
from controller.schema.jobs import read_job
from controller.schema.stream import ChangedView
from controller.schema.submit.request import JobRequest
from controller.state.kept.checkpoints import CheckpointRecord
from tests.parts.controller.rack import Rack

GIB = 2**30
FOUR = ["gpu0", "gpu2", "gpu4", "gpu5"]
"""One endpoint of each server."""


@pytest_asyncio.fixture
async def rack(tmp_path: Path) -> AsyncIterator[Rack]:
    one = Rack(tmp_path)
    await one.up()
    yield one
    await one.down()


def request(name: str = "red", endpoints: list[str] | None = None, **fields: Any) -> JobRequest:
    names = FOUR if endpoints is None else endpoints
    checkpoint = {"local": {"size_bytes": GIB}, **fields.pop("checkpoint", {})}
    body = {
        "name": name,
        "count": len(names),
        "endpoints": names,
        "command": ["x"],
        "checkpoint": checkpoint,
        "restart": "on-failure:9",
        "rank_order": "placed",
    }
    return read_job({**body, **fields})


async def running(rack: Rack, name: str = "red", **fields: Any) -> list[RankSpec]:
    await rack.desks.jobs.submit(request(name, **fields))
    await rack.state(name, "running")
    return rack.engine.specs[name]


def record(rack: Rack, name: str = "red") -> CheckpointRecord:
    state = rack.see
    return state.checkpoints[state.jobs[name].folder]


def write(rack: Rack, step: int, name: str = "red", ranks: list[int] | None = None) -> Key:
    specs = rack.engine.specs[name]
    key = Key(step, specs[0].key.epoch)
    for spec in specs:
        if spec.checkpoint is not None and (ranks is None or spec.key.rank in ranks):
            rack.engine.kept.write(spec.checkpoint.folder, key, spec.key.rank, spec.endpoint)
    return key


async def protected(rack: Rack, key: Key, name: str = "red") -> None:
    keeper = rack.parts.checkpoints
    await rack.until(lambda: keeper.newest(name, protected=True) == key)


async def die(rack: Rack, name: str = "red", rank: int = 0) -> list[RankSpec]:
    """A rank dies; return the ranks of the next run."""
    epoch = rack.engine.specs[name][0].key.epoch
    rack.engine.exit(name, rank, 1)
    await rack.until(lambda: rack.engine.specs[name][0].key.epoch != epoch)
    await rack.state(name, "running")
    assert rack.engine.states(name) == {RankState.RUNNING}
    return rack.engine.specs[name]


def events(rack: Rack, reason: str) -> list[str]:
    return [e.message for e in rack.parts.state.events.since(0, 10_000) if e.reason == reason]


async def test_each_rank_learns_of_its_folder(rack: Rack) -> None:
    specs = await running(rack)
    given = {spec.checkpoint for spec in specs}
    (one,) = given
    assert one is not None and one.ranks == 4 and one.resumed is None
    assert one.folder.startswith("red.") and len(one.key) == 32
    (run,) = record(rack).runs
    assert (run.epoch, run.endpoints) == (specs[0].key.epoch, tuple(FOUR))
    assert record(rack).servers == {"srv0", "srv1", "srv2", "srv3"}


async def test_what_is_written_is_copied_and_a_restart_goes_on_from_it(rack: Rack) -> None:
    await running(rack)
    key = write(rack, 10)
    await protected(rack, key)
    assert record(rack).runs[-1].stepped
    specs = await die(rack)
    assert {spec.checkpoint.resumed for spec in specs if spec.checkpoint} == {key}
    for spec in specs:
        folder = specs[0].checkpoint.folder if specs[0].checkpoint else ""
        shown = rack.engine.kept.shown[folder, spec.endpoint]
        assert {(k, part) for k, part, _ in shown} == {(key, spec.key.rank)}
    assert not events(rack, "CheckpointLost") and not events(rack, "CheckpointSkipped")


async def test_a_restarted_controller_goes_on(rack: Rack) -> None:
    await running(rack)
    key = write(rack, 10)
    await protected(rack, key)
    before = record(rack)
    await rack.down()
    await rack.up()
    assert record(rack) == before
    later = write(rack, 20)
    await protected(rack, later)
    specs = await die(rack, rank=2)
    assert {spec.checkpoint.resumed for spec in specs if spec.checkpoint} == {later}


async def test_a_job_without_checkpoints_has_no_folder(rack: Rack) -> None:
    await rack.desks.jobs.submit(JobRequest(name="plain", count=2, command=["x"]))
    await rack.state("plain", "running")
    assert all(spec.checkpoint is None for spec in rack.engine.specs["plain"])
    assert not rack.see.checkpoints


async def test_a_name_that_is_used_again_gets_another_folder_and_key(rack: Rack) -> None:
    await running(rack)
    first = record(rack)
    await rack.desks.jobs.cancel("red")
    await running(rack)
    second = record(rack)
    assert first.folder != second.folder and first.key != second.key
    assert {first.folder, second.folder} == set(rack.see.checkpoints)


async def test_the_stream_tells_when_a_job_is_protected(rack: Rack) -> None:
    await running(rack)
    reader = rack.desks.feed.read(None)

    async def shown(state: bool) -> None:
        async for frame in reader:
            changed = frame.data
            if isinstance(changed, ChangedView) and changed.kind == "job":
                job = rack.desks.jobs.job("red")
                if [c.status for c in job.conditions if c.type == "Protected"] == [state]:
                    return

    write(rack, 10, ranks=[0, 1, 2, 3])
    async with asyncio.timeout(30):
        await shown(True)
    reader.close()
