"""Predictions of jobs that print their steps meet what these say of the new placement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from base import clock
from controller.schema.insight.advice import PredictionView, WhatIfRequest
from controller.schema.plans import PlanRequest
from controller.telemetry.steps import HOW_TO_KNOW
from scheduler.steptime.identify import LEAST_STEPS
from tests.parts.controller.jobs import scattered
from tests.parts.controller.rack import Rack
from tests.parts.controller.steps import Recorder, Trainer, known, started


@asynccontextmanager
async def trained(tmp_path: Path) -> AsyncIterator[tuple[Rack, Trainer]]:
    """Train red over two aggregators, with nobody beside it; nothing is recorded."""
    rack = Rack(tmp_path)
    await rack.up()
    await scattered(rack)
    await rack.desks.jobs.cancel("blue")
    await rack.state("blue", "cancelled")
    trainer = Trainer(rack)
    running = asyncio.create_task(trainer.run())
    yield rack, trainer
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await rack.down()


async def regrouped(rack: Rack) -> float:
    """Carry out a plan; return when."""
    plan = await rack.desks.plans.make_plan(PlanRequest())
    done = await rack.desks.plans.apply(plan, wait_s=60)
    assert done.state == "committed"
    return clock.time()


async def planned(rack: Rack) -> PredictionView:
    return next(p for p in rack.desks.advice.predictions() if p.cause == "plan")


async def measured(rack: Rack, step_s: float) -> PredictionView:
    """Return the plan's prediction once its measurement is this one."""

    async def met() -> bool:
        found = (await planned(rack)).measured_s
        return found is not None and found == pytest.approx(step_s, rel=0.005)

    await rack.until(met, limit_s=300)
    return await planned(rack)


def settled(rack: Rack) -> bool:
    return rack.parts.meter.current(rack.see.jobs["red"], rack.see.homes()) is not None


async def test_a_prediction_meets_ten_steps_that_the_program_prints(tmp_path: Path) -> None:
    async with trained(tmp_path) as (rack, trainer):
        await rack.until(lambda: settled(rack))
        before_s = trainer.step_s()
        moved_at = await regrouped(rack)
        after_s = trainer.step_s()
        assert after_s < 0.9 * before_s
        judged = await measured(rack, after_s)
        assert judged.step_s and judged.step_before_s == pytest.approx(before_s)
        assert judged.measured_at and judged.measured_at >= moved_at + LEAST_STEPS * after_s
        assert judged.error is not None and judged.error < 0.02


async def test_what_was_measured_first_is_corrected(tmp_path: Path) -> None:
    async with trained(tmp_path) as (rack, trainer):
        await rack.until(lambda: settled(rack))
        await regrouped(rack)
        trainer.slow = 20
        early = await measured(rack, 2 * trainer.step_s())
        assert early.state == "met"
        late = await measured(rack, trainer.step_s())
        assert late.error is not None and early.error is not None and late.error < early.error


async def test_steps_recorded_before_a_pause_are_not_those_after_it(tmp_path: Path) -> None:
    """The job is paused while its light moves: what was known of it is of the old placement."""
    rack, recorder = await started(tmp_path)
    desks = rack.desks
    await desks.advice.whatif("red", WhatIfRequest(homes={"gpu2": "as0"}))
    old = recorder("red")
    assert old is not None
    recorder.kept["red"] = old
    await desks.jobs.pause("red")
    await asyncio.sleep(5.0)
    await desks.plans.attach("gpu2", "as0", wait_s=60)
    await desks.jobs.resume("red")
    await asyncio.sleep(30.0)
    (made,) = desks.advice.predictions()
    assert made.state == "open"
    del recorder.kept["red"]

    async def met() -> bool:
        return desks.advice.predictions()[0].state == "met"

    await rack.until(met, limit_s=300)
    await rack.down()


async def test_a_recording_counts_once_most_of_it_is_of_the_new_placement(tmp_path: Path) -> None:
    rack, recorder = await started(tmp_path)
    moved_at = await regrouped(rack)
    new = recorder("red")
    assert new is not None
    judged = await measured(rack, new.step_s)
    assert judged.measured_at and judged.measured_at - moved_at >= new.steps / 2 * new.step_s * 0.9
    await rack.down()


async def test_where_nothing_is_known_the_prediction_says_what_to_do(tmp_path: Path) -> None:
    rack = Rack(tmp_path)
    await rack.up()
    await scattered(rack)
    await regrouped(rack)
    made = await planned(rack)
    assert made.step_s is None
    assert HOW_TO_KNOW in made.basis[-1]
    await rack.down()


async def test_lines_that_are_no_steps_tell_nothing(tmp_path: Path) -> None:
    rack = Rack(tmp_path)
    await rack.up()
    await scattered(rack)
    lines = [
        '{"event": "step", "step_s": 1e999}',
        '{"event": "step", "step_s": "1"}',
        '{"event": "step", "step": true, "step_s": -1}',
        '{"event": "end", "step_s": 1}',
        '["step_s"]',
        '{"step_s"',
        "x" * 100_000 + '"step_s"',
        "[" * 5000 + '"step_s"',
        '{"event": "step", "step": %s, "step_s": 1}' % ("9" * 5000),
    ]
    timed = [(clock.time() + 10.0, line) for line in lines for _ in range(20)]
    for rank in range(4):
        rack.engine.printed["red", rank] = timed
    await asyncio.sleep(60.0)
    assert not settled(rack)
    assert rack.desks.health.health().status == "ok"
    await rack.down()


async def test_facts_at_the_start_count_at_once(tmp_path: Path) -> None:
    rack = Rack(tmp_path)
    recorder = Recorder(rack)
    await rack.up(facts=recorder)
    await scattered(rack)
    await known(rack)
    await rack.down()
