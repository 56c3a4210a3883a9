"""What-if answers and predictions over a whole controller with fakes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controller.base.errors import ServiceError
from controller.schema.insight.advice import WhatIfRequest
from controller.schema.plans import PlanRequest
from controller.state.kept.predictions import KEPT_PREDICTIONS, PredictionRecord
from controller.telemetry.steps import HOW_TO_KNOW
from tests.parts.controller.steps import PROFILE, TOGETHER, known, started


async def test_a_what_if_predicts_in_seconds_and_moves_nothing(tmp_path: Path) -> None:
    rack, _ = await started(tmp_path)
    circuits = list(rack.switch.circuits)
    desks = rack.desks
    view = await desks.advice.whatif("red", WhatIfRequest(homes={"gpu2": "as0", "gpu3": "as0"}))
    assert rack.switch.circuits == circuits
    assert (view.span_before, view.span_after) == (2, 1)
    assert view.homes_after == TOGETHER
    assert view.step_then_s and view.step_now_s
    truth = PROFILE.step_s(4, 1.0)
    assert view.step_then_s.low == pytest.approx(truth, rel=0.01)
    assert view.step_then_s.high == pytest.approx(truth, rel=0.01)
    assert view.change and view.change.high < 0
    assert view.ring_rate_after == pytest.approx(1.0)
    assert view.possible
    assert view.unidentified == []
    (kept,) = rack.desks.advice.predictions()
    assert (kept.id, kept.state, kept.cause) == (view.prediction, "open", "whatif")
    await rack.down()


async def test_plans_and_what_ifs_agree(tmp_path: Path) -> None:
    rack, _ = await started(tmp_path)
    view = await rack.desks.advice.whatif("red", WhatIfRequest(homes=TOGETHER))
    plan = await rack.desks.plans.make_plan(PlanRequest())
    gain = next(gain for gain in plan.predicted_gain if gain.job == "red")
    assert view.step_now_s and view.step_then_s and gain.step_speedup_low
    assert gain.step_speedup_low == pytest.approx(view.step_now_s / view.step_then_s.high)
    assert gain.placements_measured >= 1
    await rack.down()


async def test_a_prediction_meets_what_is_measured_after_the_regroup(tmp_path: Path) -> None:
    rack, _ = await started(tmp_path)
    desks = rack.desks
    asked = await desks.advice.whatif("red", WhatIfRequest(homes=TOGETHER))
    plan = await desks.plans.make_plan(PlanRequest())
    done = await desks.plans.apply(plan, wait_s=60)
    assert done.state == "committed"

    async def met() -> bool:
        return any(p.state == "met" and p.cause == "plan" for p in desks.advice.predictions())

    await rack.until(met)
    found = {p.cause: p for p in desks.advice.predictions()}
    judged = found["plan"]
    assert judged.error is not None and judged.error < 0.02
    assert judged.measured_s is not None and judged.measured_at
    homes = {e.name: e.home for e in await desks.fabric.endpoints() if e.name in TOGETHER}
    assert judged.homes == homes
    whatif = next(p for p in desks.advice.predictions() if p.id == asked.prediction)
    assert whatif.state == ("met" if homes == TOGETHER else "open")
    await rack.down()


async def test_predictions_outlive_a_restart_and_ids_are_not_used_again(tmp_path: Path) -> None:
    rack, recorder = await started(tmp_path)
    before = await rack.desks.advice.whatif("red", WhatIfRequest(homes=TOGETHER))
    again = await rack.desks.advice.whatif("red", WhatIfRequest(homes=TOGETHER))
    assert again.prediction == before.prediction
    await rack.down()
    await rack.up(facts=recorder)
    (kept,) = rack.desks.advice.predictions()
    assert (kept.id, kept.state, kept.homes) == (before.prediction, "open", TOGETHER)
    await rack.state("red", "running")
    await known(rack)
    other = await rack.desks.advice.whatif("red", WhatIfRequest(homes={"gpu2": "as0"}))
    assert other.prediction != before.prediction
    await rack.desks.jobs.cancel("red")

    async def expired() -> bool:
        return all(p.state == "expired" for p in rack.desks.advice.predictions())

    await rack.until(expired)
    await rack.down()
    await rack.up(facts=recorder)
    assert [p.state for p in rack.desks.advice.predictions()] == ["expired", "expired"]
    await rack.down()


async def test_a_refused_write_leaves_no_prediction(tmp_path: Path) -> None:
    rack, _ = await started(tmp_path)
    rack.disk.fault, rack.disk.after, rack.disk.times = "full", 0, 10**6
    with pytest.raises(ServiceError):
        await rack.desks.advice.whatif("red", WhatIfRequest(homes=TOGETHER))
    assert rack.desks.advice.predictions() == []
    rack.disk.release()
    await rack.down()


async def test_only_predictions_of_the_projects_that_are_asked_for(tmp_path: Path) -> None:
    rack, _ = await started(tmp_path)
    await rack.desks.advice.whatif("red", WhatIfRequest(homes=TOGETHER))
    assert len(rack.desks.advice.predictions({"default"})) == 1
    assert rack.desks.advice.predictions({"other"}) == []
    await rack.down()


@pytest.mark.parametrize(
    ("homes", "message"),
    [
        ({"gpu5": "as0"}, "not an endpoint of job red"),
        ({"gpu2": "as9"}, "no aggregator as9"),
        ({"gpu0": "as0"}, "there already"),
        ({}, "there already"),
    ],
)
async def test_homes_that_make_no_sense_are_refused(
    tmp_path: Path, homes: dict[str, str], message: str
) -> None:
    rack, _ = await started(tmp_path)
    with pytest.raises(ServiceError, match=message) as caught:
        await rack.desks.advice.whatif("red", WhatIfRequest(homes=homes))
    assert caught.value.code == "invalid"
    assert caught.value.object == "job/red"
    await rack.down()


async def test_only_running_jobs_have_a_next_step(tmp_path: Path) -> None:
    rack, _ = await started(tmp_path)
    desks = rack.desks
    await desks.jobs.cancel("red")
    with pytest.raises(ServiceError, match="is cancelled") as caught:
        await desks.advice.whatif("red", WhatIfRequest(homes=TOGETHER))
    assert caught.value.code == "conflict"
    with pytest.raises(ServiceError, match="job green does not exist"):
        await desks.advice.whatif("green", WhatIfRequest(homes=TOGETHER))
    await rack.down()


async def test_without_facts_traffic_gives_the_ratio_or_nothing(tmp_path: Path) -> None:
    rack, recorder = await started(tmp_path)
    await rack.down()
    await rack.up()
    await rack.state("red", "running")
    view = await rack.desks.advice.whatif("red", WhatIfRequest(homes=TOGETHER))
    assert view.step_then_s is None and view.step_now_s is None
    assert view.change is None
    assert view.unidentified == [f"nothing was measured of its steps yet: {HOW_TO_KNOW}"]
    await rack.down()
    del recorder


async def test_facts_of_the_old_placement_do_not_count_after_a_move(tmp_path: Path) -> None:
    rack, recorder = await started(tmp_path)
    recorder.silent.add("red")
    await rack.desks.plans.attach("gpu2", "as0", wait_s=60)
    state = rack.see
    assert rack.parts.meter.current(state.jobs["red"], state.homes()) is None
    await rack.down()


async def test_the_oldest_predictions_are_forgotten(tmp_path: Path) -> None:
    rack, _ = await started(tmp_path)
    state = rack.parts.state
    await rack.desks.advice.whatif("red", WhatIfRequest(homes=TOGETHER))
    (first,) = state.predictions.values()
    for _ in range(KEPT_PREDICTIONS):
        made: PredictionRecord = replace(first, id=state.predictions.next_key(), state="expired")
        state.predictions.put(made)
    assert state.predictions.trim() == (first.id,)
    assert len(state.predictions) == KEPT_PREDICTIONS
    assert first.id not in state.predictions
    await rack.down()
