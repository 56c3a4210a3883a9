"""Several users drop checkpoints of one large job at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from checkpoints.values import Scheme
from controller.checkpoints.desk import CheckpointDesk
from tests.parts.controller.checkpoint_rig import Rig, site_of
from tests.stories.telling import Log, tell

SERVERS = 8
RANKS = 64
"""As many as make the job's steps work for a thread (``controller.checkpoints.book.SLOW_WORK``)."""
STEPS = 8


@dataclass(frozen=True)
class Drop:
    """A user drops a step, ``at_ms`` after the beginning."""

    step: int
    at_ms: int


async def _drop(rig: Rig, drop: Drop, log: Log) -> None:
    await asyncio.sleep(drop.at_ms / 1000)
    log.note(f"drops step {drop.step}")
    desk = CheckpointDesk(
        rig.state,
        rig.kept,
        rig.keeper,
        step_s=lambda job: 2.0,
        restart_s=lambda job: None,
        exposures=lambda job: (),
    )
    await desk.drop_checkpoint("red", drop.step, force=True)
    log.note(f"step {drop.step} is dropped")


def story(drops: Sequence[Drop], seed: int) -> Log:
    """Tell a story of drops; AssertionError when the record lacks one that was acknowledged."""

    async def told(log: Log) -> None:
        rig = Rig(site_of(SERVERS, RANKS // SERVERS))
        await rig.up()
        endpoints = [f"gpu{n}" for n in range(RANKS)]
        rig.submit("red", endpoints, Scheme.SINGLE)
        await rig.start("red", endpoints)
        for step in range(1, STEPS + 1):
            rig.write("red", step)
        await asyncio.sleep(1.0)
        await asyncio.gather(*(_drop(rig, drop, log) for drop in drops))
        (record,) = rig.store.records()
        durable = {one.step for one in record.spoiled}
        wanted = {drop.step for drop in drops}
        assert wanted <= durable, f"steps {wanted} are dropped, and the disk has {durable}"

    return tell(told, seed)
