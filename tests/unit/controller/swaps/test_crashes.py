"""The controller dies at every step of a swap; the next one finishes it, once, or falls back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.base import failpoints
from controller.state.records import JobRecord
from controller.telemetry.throughput import EndpointRates
from tests.parts.controller.failpoints import Reaper
from tests.parts.controller.losses import rack_with
from tests.parts.controller.rack import Rack, crash
from tests.parts.controller.recoveries import (
    again,
    check,
    job_of,
    kill,
    rows,
    running,
    state_of,
)


async def whole(rack: Rack) -> None:
    """Wait until the job runs without the dead endpoint and nothing is under way."""

    def settled() -> bool:
        state, job = state_of(rack), job_of(rack)
        return (
            job.state == "running"
            and "gpu1" not in job.endpoints
            and not rack.see.recovers("red")
            and not state.transactions.running
            and not rack.see.interrupted
            and not state.light.held
        )

    await rack.until(settled)


class At(Reaper):
    """Dies at one named point."""

    def __init__(self, point: str) -> None:
        super().__init__()
        self.point = point

    async def __call__(self, point: str) -> None:
        if point == self.point:
            self.at = len(self.passed) + 1
        await super().__call__(point)


POINTS = [point for point in failpoints.SWAP_POINTS if not point.startswith("swap-first.")]
INSIDE = ["switch.before", "switch.after", "qualify.after", "log-commit.before", "start.after"]


@pytest.mark.parametrize("point", [*POINTS, *INSIDE])
async def test_a_swap_survives_the_death_of_the_controller(tmp_path: Path, point: str) -> None:
    rack = rack_with(tmp_path, "gpu5")
    await rack.up()
    before = await running(rack)
    reaper = At(point)
    with failpoints.hooked(reaper):
        kill(rack, "gpu1")
        await asyncio.wait_for(reaper.died.wait(), 60)
        await crash(rack)
    await rack.up()
    await whole(rack)
    after = job_of(rack)
    assert after.epoch > before.epoch
    assert after.endpoints == ("gpu0", "gpu5", "gpu2", "gpu3"), "the spare, once"
    assert "gpu1" not in rack.aggregators.light()
    assert len(rows(rack)) == 1, "one recovery, not two"
    check(rack)
    await rack.down()


@pytest.mark.parametrize("point", ["swap-decide.before", "swap-decide.after", "swap-epoch.after"])
async def test_of_two_losses_before_a_step_the_later_goes_on(tmp_path: Path, point: str) -> None:
    """The row of the first is still open when the second begins: two would recover one job."""
    rack = rack_with(tmp_path, "gpu4", "gpu5")
    await rack.up()
    first = await again_after(rack, await running(rack), "gpu2")
    reaper = At(point)
    with failpoints.hooked(reaper):
        kill(rack, "gpu1")
        await asyncio.wait_for(reaper.died.wait(), 60)
        await crash(rack)
    await rack.up()
    await rack.until(lambda: sum(row.open for row in rows(rack)) <= 1)
    await whole(rack)
    assert job_of(rack).epoch > first.epoch
    assert {"gpu4", "gpu5"} < set(job_of(rack).endpoints)
    assert not state_of(rack).jobs.handled, "it can lose hardware again"
    check(rack)
    await rack.down()


async def again_after(rack: Rack, before: JobRecord, endpoint: str) -> JobRecord:
    kill(rack, endpoint)
    return await again(rack, before)


async def test_a_death_at_the_first_step_closes_the_row_once(tmp_path: Path) -> None:
    rack = rack_with(tmp_path, "gpu5")
    await rack.up()
    before = await running(rack)
    kill(rack, "gpu1")
    await again(rack, before)
    await crash(rack)
    await rack.up()
    await rack.state("red", "running")
    assert rows(rack)[-1].stage == "started"
    rack.parts.telemetry.rates = lambda endpoint: EndpointRates(tx_bps=1e6)  # type: ignore[method-assign]
    await rack.until(lambda: rows(rack)[-1].stage == "over")
    row = rows(rack)[-1]
    assert row.broken and row.finished_at is not None
    await rack.down()
