"""Recoveries with the real keeper of checkpoints: what dies costs no step that can be had."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from agentlink.checkpoints import HoldingKind
from checkpoints.ledger import Key
from controller.state.kept.checkpoints import CheckpointRecord
from tests.parts.controller.checkpoints import digest_of
from tests.parts.controller.losses import lose, rack_with
from tests.parts.controller.rack import Rack, crash
from tests.parts.controller.recoveries import (
    again,
    check,
    job_of,
    kill,
    mended,
    reasons,
    rows,
    running,
    settled,
    state_of,
)

APART = ["gpu0", "gpu2", "gpu4", "gpu5"]
"""One endpoint of each server; the others are spares of the site."""
COPIED = {
    "checkpoint": {
        "complete": "dcp",
        "local": {"size_bytes": 2**20, "keep": 3},
        "copies": {"scheme": "partner"},
    },
    "endpoints": APART,
    "rank_order": "placed",
    "restart": "on-failure:999",
}
HARMS = 10
"""In each life."""


def record(rack: Rack) -> CheckpointRecord:
    return state_of(rack).checkpoints[job_of(rack).folder]


def write(rack: Rack, step: int, ranks: range = range(4)) -> Key:
    """The ranks of the present run write a step."""
    job = job_of(rack)
    key = Key(step, job.epoch)
    for rank in ranks:
        rack.engine.kept.write(job.folder, key, rank, job.endpoints[rank])
    return key


async def protected(rack: Rack, key: Key) -> None:
    await rack.until(lambda: rack.parts.checkpoints.newest("red", protected=True) == key)


async def told(rack: Rack, key: Key) -> None:
    """Wait until the controller has heard of a step."""

    def heard() -> bool:
        ledger = rack.parts.checkpoints.ledger("red")
        return ledger is not None and key in ledger.steps

    await rack.until(heard)


def to_be_had(rack: Rack, keys: set[Key]) -> Key | None:
    """Return the newest step that the servers which answer have whole: the truth."""
    kept, cables = rack.engine.kept, state_of(rack).cables
    ranks: dict[Key, set[int]] = {}
    for place in kept.held:
        lives = cables[place.endpoint].server not in rack.engine.lost
        if lives and place.kind in (HoldingKind.OWN, HoldingKind.COPY):
            ranks.setdefault(place.key, set()).add(place.rank)
    whole = [key for key in keys if ranks.get(key) == set(range(4))]
    return max(whole, default=None)


def check_run(rack: Rack) -> Key | None:
    """Assert that every rank of the present run has its part; return what it resumed from."""
    job, run = job_of(rack), record(rack).runs[-1]
    assert (run.epoch, run.endpoints) == (job.epoch, job.endpoints)
    resumed = run.run.resumed
    for rank, endpoint in enumerate(job.endpoints):
        if resumed is not None:
            shown = rack.engine.kept.shown[job.folder, endpoint]
            assert (resumed, rank, digest_of(job.folder, resumed, rank)) in shown
    return resumed


@pytest.mark.parametrize("seed", range(4))
async def test_the_newest_step_that_can_be_had(tmp_path: Path, seed: int) -> None:
    """Ranks write, something dies, and the next run begins from what is truly left."""
    dice = random.Random(seed)  # noqa: S311 - a test's dice
    rack = rack_with(tmp_path, "gpu1", "gpu3")
    await rack.up()
    await running(rack, "red", 4, **COPIED)
    step, written = 0, set[Key]()
    for _ in range(HARMS):
        epoch, known = job_of(rack).epoch, len(rows(rack))
        step += 10
        key = write(rack, step)
        written.add(key)
        await protected(rack, key)
        if dice.random() < 0.6:  # a step that has no copy, or lacks a rank's part, when it dies
            rack.engine.kept.lazy = True
            step += 10
            written.add(key := write(rack, step, range(dice.randint(2, 4))))
            await told(rack, key)
        possible = await _harm(rack, dice, written)
        repaired = await settled(rack)
        rack.engine.kept.lazy = False
        check(rack)
        resumed = check_run(rack)
        if job_of(rack).epoch == epoch:  # only the controller died
            continue
        if not repaired:
            assert resumed == possible
        assert resumed is not None and possible is not None and resumed >= possible
        assert step - resumed.step <= 10, "at most the step that had no copy is lost"
        written = {k for k in written if k <= resumed}
        for row in rows(rack)[known:]:
            if row.how == "swap" and not repaired:
                assert row.step_restored == resumed.step
        await mended(rack)
    await rack.down()


async def _harm(rack: Rack, dice: random.Random, written: set[Key]) -> Key | None:
    """Let something die; return the newest step that can be had then."""
    job = job_of(rack)
    victim = dice.choice(job.endpoints)
    server = state_of(rack).cables[victim].server
    kind = dice.choice(["rank", "gpu", "server", "machine", "controller", "gpu and controller"])
    if kind == "rank":
        rack.engine.exit("red", job.endpoints.index(victim), 1)
    elif kind == "gpu":
        kill(rack, victim)
    elif kind in ("server", "machine"):
        if kind == "machine":  # it starts again, and its memory is empty
            rack.engine.kept.lose(server)
        lose(rack, server)
    possible = to_be_had(rack, written)
    if "controller" in kind:
        if kind != "controller":
            kill(rack, victim)
        await asyncio.sleep(dice.random() * 5.0)
        await crash(rack)
        await rack.up()
    return possible


async def test_the_end_of_a_run_is_noted_before_its_successor_begins(tmp_path: Path) -> None:
    """Else the keeper would take the end of the next run for it."""
    rack = rack_with(tmp_path, "gpu1")
    await rack.up()
    before = await running(rack, "red", 4, **COPIED)
    key = write(rack, 10)
    await protected(rack, key)
    kill(rack, "gpu2")
    before = await again(rack, before)
    assert [run.end for run in record(rack).runs] == ["unfit", ""]
    assert check_run(rack) == key
    rack.engine.exit("red", 0, 1)
    await again(rack, before)
    assert [run.end for run in record(rack).runs] == ["unfit", "own", ""]
    await rack.down()


async def test_two_own_deaths_before_the_first_step_spoil_the_step(tmp_path: Path) -> None:
    rack = rack_with(tmp_path)
    await rack.up()
    before = await running(rack, "red", 4, **COPIED)
    older = write(rack, 10)
    await protected(rack, older)
    newer = write(rack, 20)
    await protected(rack, newer)
    resumed = []
    for _ in range(3):
        await rack.until(lambda: job_of(rack).state == "running")
        rack.engine.exit("red", 1, 1)
        before = await again(rack, before)
        resumed.append(check_run(rack))
    assert resumed == [newer, newer, older]
    assert "CheckpointSpoiled" in reasons(rack)
    assert [run.end for run in record(rack).runs] == ["own", "own", "own", ""]
    await rack.down()


async def test_deaths_of_hardware_spoil_no_step(tmp_path: Path) -> None:
    rack = rack_with(tmp_path, "gpu1", "gpu3")
    await rack.up()
    before = await running(rack, "red", 4, **COPIED)
    key = write(rack, 10)
    await protected(rack, key)
    for victim in ("gpu2", "gpu4"):
        kill(rack, victim)
        before = await again(rack, before)
        assert check_run(rack) == key
    rack.engine.exit("red", 0, 1)
    await again(rack, before)
    assert check_run(rack) == key
    assert "CheckpointSpoiled" not in reasons(rack)
    await rack.down()
