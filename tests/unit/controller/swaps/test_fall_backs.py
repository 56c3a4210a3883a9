"""Without a spare, or with one that does not work, a job waits, shrinks or goes elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from controller.state.records import JobRecord
from tests.parts.controller.losses import KEEPS, FakeCheckpoints, rack_with, with_checkpoints
from tests.parts.controller.rack import Rack
from tests.parts.controller.recoveries import (
    again,
    check,
    job_of,
    kill,
    reasons,
    rows,
    running,
    state_of,
)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> FakeCheckpoints:
    made = FakeCheckpoints()
    with_checkpoints(monkeypatch, made)
    return made


@pytest_asyncio.fixture
async def plain(tmp_path: Path, kept: FakeCheckpoints) -> AsyncIterator[Rack]:
    """The paper's rack without spares."""
    rack = rack_with(tmp_path)
    await rack.up()
    yield rack
    await rack.down()


async def waiting(rack: Rack) -> JobRecord:
    await rack.state("red", "pending")
    return job_of(rack)


async def test_a_job_without_a_spare_waits_and_says_why(plain: Rack) -> None:
    await running(plain, count=4, **KEEPS)
    kill(plain, "gpu1")
    await plain.until(lambda: rows(plain) and rows(plain)[-1].how == "queue")
    assert "no spare is left" in rows(plain)[-1].why
    assert "SwapImpossible" in reasons(plain)
    assert job_of(plain).state in ("pending", "starting", "running"), "it does not end"


async def test_a_job_shrinks_if_its_checkpoint_allows_that(
    plain: Rack, kept: FakeCheckpoints
) -> None:
    before = await running(plain, on_loss="shrink", at_least=2, **KEEPS)
    kept.write("red", 7, before.epoch, ranks=4)
    kill(plain, "gpu1")
    after = await again(plain, before)
    assert after.endpoints == ("gpu0", "gpu2", "gpu3")
    assert len(after.exit_codes) == 3
    assert rows(plain)[-1].how == "shrink" and rows(plain)[-1].step_restored == 7
    assert "JobShrunk" in reasons(plain)
    check(plain)


@pytest.mark.parametrize(
    ("gathers", "at_least", "why"), [(False, 2, "4 parts"), (True, 4, "it needs 4")]
)
async def test_a_job_does_not_shrink_below_what_works(
    plain: Rack, kept: FakeCheckpoints, gathers: bool, at_least: int, why: str
) -> None:
    before = await running(plain, on_loss="shrink", at_least=at_least, **KEEPS)
    kept.gathers = gathers
    kept.write("red", 7, before.epoch, ranks=4)
    kill(plain, "gpu1")
    await plain.until(lambda: rows(plain) and rows(plain)[-1].how == "queue")
    assert why in rows(plain)[-1].why


async def test_the_next_spare_when_the_light_of_the_first_fails(
    tmp_path: Path, kept: FakeCheckpoints
) -> None:
    rack = rack_with(tmp_path, "gpu4", "gpu5")
    await rack.up()
    before = await running(rack)
    first = "1.1.6"  # gpu5, which is under as1 and must move to as0
    rack.switch.dull = {(first, port) for port in ("2.1.1", "2.1.2", "2.1.3", "2.1.4")}
    rack.switch.refused = set()
    state_of(rack).light.quarantine.remove("gpu4")
    kill(rack, "gpu1")
    after = await again(rack, before)
    assert after.endpoints == ("gpu0", "gpu4", "gpu2", "gpu3")
    check(rack)
    await rack.down()


async def test_a_cancel_during_a_swap_ends_the_job(tmp_path: Path, kept: FakeCheckpoints) -> None:
    rack = rack_with(tmp_path, "gpu5")
    await rack.up()
    await running(rack)
    held = asyncio.Event()
    stop = rack.engine.stop

    async def slow(job: str, *asked: Any, **named: Any) -> object:
        held.set()
        await asyncio.sleep(0.2)
        return await stop(job, *asked, **named)

    rack.engine.stop = slow  # type: ignore[method-assign, assignment]
    kill(rack, "gpu1")
    await asyncio.wait_for(held.wait(), 60)
    async with asyncio.timeout(60):
        await rack.desks.jobs.cancel("red")
    assert job_of(rack).state == "cancelled"
    assert not rack.engine.statuses
    await rack.until(lambda: not any(row.open for row in rows(rack)))
    assert state_of(rack).spares() == {"gpu5": ""}
    await rack.down()


async def test_two_jobs_that_want_one_spare(tmp_path: Path, kept: FakeCheckpoints) -> None:
    rack = rack_with(tmp_path, "gpu5")
    await rack.up()
    await running(rack, "red", 2, **KEEPS)
    await running(rack, "blue", 2, endpoints=["gpu2", "gpu3"], **KEEPS)
    kill(rack, "gpu1")
    kill(rack, "gpu3")
    await rack.until(lambda: len(state_of(rack).recoveries) >= 2)
    await rack.until(lambda: all(not rack.see.recovers(name) for name in ("red", "blue")))
    hows = sorted(row.how for job in ("red", "blue") for row in rows(rack, job)[:1])
    assert hows == ["queue", "swap"], "one gets it, the other waits"
    holders = state_of(rack).jobs.holders()
    assert holders["gpu5"].name in ("red", "blue")
    await rack.until(lambda: not state_of(rack).light.held)
    check(rack)
    await rack.down()
