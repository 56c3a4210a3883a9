"""Two hundred random kills: of ranks, GPUs, servers, agents and controllers."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from checkpoints.ledger import Key
from tests.parts.controller.losses import KEEPS, FakeCheckpoints, lose, rack_with, with_checkpoints
from tests.parts.controller.rack import Rack, crash
from tests.unit.controller.swaps.stories import (
    check,
    job_of,
    kill,
    mended,
    rows,
    running,
    settled,
    state_of,
)

KILLS = 25
"""In each of eight lives."""


@pytest.mark.parametrize("seed", range(8))
async def test_random_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Whatever dies, the job goes on from its newest step, and nothing has two holders."""
    kept, dice = FakeCheckpoints(), random.Random(seed)  # noqa: S311 - a test's dice
    with_checkpoints(monkeypatch, kept)
    rack = rack_with(tmp_path, "gpu4", "gpu5")
    await rack.up()
    await running(rack, "red", 3, endpoints=[], restart="on-failure:999", **KEEPS)
    step = 0
    for _ in range(KILLS):
        job = job_of(rack)
        step += dice.randint(1, 5)
        kept.write("red", step, job.epoch, ranks=3)
        known = len(rows(rack))
        await _harm(rack, dice)
        await settled(rack)
        check(rack)
        assert kept.newest("red") == Key(step, job.epoch), "no step is lost"
        for row in rows(rack)[known:]:
            if row.how in ("swap", "shrink"):
                assert row.step_restored == step, "it goes on from the newest"
        await mended(rack)
    await rack.down()


async def _harm(rack: Rack, dice: random.Random) -> None:
    job = job_of(rack)
    victim = dice.choice(job.endpoints)
    kind = dice.choice(["rank", "gpu", "hung gpu", "server", "controller", "gpu and controller"])
    if kind == "rank":
        rack.engine.exit("red", job.endpoints.index(victim), dice.choice([1, 137]))
    elif kind == "gpu":
        kill(rack, victim)
    elif kind == "hung gpu":
        kill(rack, victim, None)
    elif kind == "server":
        lose(rack, state_of(rack).cables[victim].server)
    else:
        if kind != "controller":
            kill(rack, victim)
        await asyncio.sleep(dice.random() * 5.0)
        await crash(rack)
        await rack.up()
