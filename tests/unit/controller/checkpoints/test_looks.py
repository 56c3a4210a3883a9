"""The look at all jobs' checkpoints: other work runs in between, and it does not grow for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from agentlink.checkpoints import HoldingKind
from tests.parts.controller.checkpoint_rig import Rig, site_of

JOBS = 32


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    one = Rig(site_of(2 * JOBS))
    await one.up()
    yield one
    await one.crash()


def steps(rig: Rig, folder: str) -> list[int]:
    return sorted({place.key.step for place in rig.places(folder, HoldingKind.OWN)})


async def test_other_work_runs_between_two_jobs(rig: Rig) -> None:
    for number in range(JOBS):
        name = f"j{number}"
        rig.submit(name, [f"gpu{4 * number}", f"gpu{4 * number + 2}"])
        await rig.start(name, [f"gpu{4 * number}", f"gpu{4 * number + 2}"])
        rig.write(name, 1)
    await rig.quiet()
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    await rig.keeper.check()
    ticking.cancel()
    assert turns >= JOBS


async def test_steps_that_a_rank_never_writes_do_not_pile_up(rig: Rig) -> None:
    job = rig.submit("red", ["gpu0", "gpu2"], keep=2)
    await rig.start("red", ["gpu0", "gpu2"])
    for step in range(1, 30):
        rig.write("red", step, ranks=[0])
        await rig.settle(1)
    await rig.settle()
    assert steps(rig, job.folder) == [27, 28, 29]


async def test_a_rank_that_is_late_still_completes_the_newest_step(rig: Rig) -> None:
    job = rig.submit("red", ["gpu0", "gpu2"], keep=1)
    await rig.start("red", ["gpu0", "gpu2"])
    rig.write("red", 1, ranks=[0])
    await rig.settle()
    rig.write("red", 2, ranks=[0])
    await rig.settle()
    rig.write("red", 1, ranks=[1])
    await rig.settle()
    newest = rig.keeper.newest("red", protected=True)
    assert newest is not None
    assert newest.step == 1
    assert steps(rig, job.folder) == [1, 2]
    rig.write("red", 2, ranks=[1])
    await rig.settle()
    assert steps(rig, job.folder) == [2]


async def test_while_a_server_is_away_its_parts_count_as_held(rig: Rig) -> None:
    job = rig.submit("red", ["gpu0", "gpu2"], keep=1)
    await rig.start("red", ["gpu0", "gpu2"])
    for step in range(1, 9):
        rig.write("red", step)
    rig.away.add("srv1")
    await rig.down()
    await rig.up()
    await rig.settle()
    assert len(steps(rig, job.folder)) == 8
    await rig.back("srv1")
    await rig.settle()
    newest = rig.keeper.newest("red", protected=True)
    assert newest is not None
    assert newest.step == 8
