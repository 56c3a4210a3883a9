"""Predictions of a comparison: kept with its result, met by any job of the kind, also later."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.base.errors import ServiceError
from controller.schema.insight.advice import PredictionView
from controller.schema.insight.measurements import MeasurementView
from controller.schema.jobs import read_job
from controller.schema.plans import PlanRequest, PlanView
from measure.compare.kind import COMPARE
from scheduler.steptime.facts import StepFacts
from scheduler.steptime.road import LinkModel
from tests.parts.controller.echo import MeasuringRack

COMMAND = ["train", "--fast"]
COMPUTE_S = 0.1
STEPS_S = {"remote": 0.5, "local": 0.2}
HYBRID_S = 0.31
FITS = {"same aggregator": (1e-4, 29e6), "as0-as1": (2e-4, 13e6)}


class Recorder:
    """Tells the steps of jobs that users submit; nothing of a measurement's."""

    def __init__(self, step_s: float = HYBRID_S) -> None:
        self.step_s = step_s

    def __call__(self, job: str) -> StepFacts | None:
        if job.startswith("measure-"):
            return None
        comm = self.step_s - COMPUTE_S
        return StepFacts(
            ranks=4,
            step_s=self.step_s,
            comm_s=comm,
            exposed_s=comm,
            bytes_per_step=0,
            calls_per_step=1,
            source="torch",
            steps=40,
        )


class ComparingRack(MeasuringRack):
    async def up(self, **options: object) -> Any:
        return await super(MeasuringRack, self).up(
            kinds={"compare": COMPARE},
            facts=Recorder(),
            links=lambda: LinkModel(FITS, ring_share=0.9),
        )


def printed(step_s: float) -> list[str]:
    fields = {"event": "step", "step_s": step_s, "compute_s": COMPUTE_S}
    return [json.dumps({**fields, "comm_s": step_s - COMPUTE_S})] * 60


async def compared(rack: ComparingRack, number: int = 1) -> MeasurementView:
    """Compare three placements; it runs remote, then local, and predicts hybrid."""
    await rack.measure(
        type="compare", settings={"job": {"count": 4, "command": COMMAND}}, project="default"
    )
    for run, label in enumerate(("remote", "local")):
        job = f"measure-m{number}" + ("" if run == 0 else f"-{run + 1}")
        await rack.finish(job, *printed(STEPS_S[label]))
    done = await rack.ended(f"m{number}")
    assert done.state == "completed", done.reason
    return done


async def predictions(rack: ComparingRack) -> dict[str, PredictionView]:
    found = rack.desks.advice.predictions()
    return {p.job + (f"-{p.state}" if p.state != "met" else ""): p for p in found}


def row(done: MeasurementView, name: str) -> dict[str, Any]:
    assert done.result is not None
    return dict(next(r for r in done.result.rows if r["placement"] == name))


async def go_there(rack: ComparingRack, homes: dict[str, str]) -> PlanView:
    plan = await rack.desks.plans.make_plan(PlanRequest(homes=homes))
    if plan.moves:
        done = await rack.desks.plans.apply(plan.model_dump(mode="json"), wait_s=60)
        assert done.state == "committed", done.error
    return plan


async def submit(rack: ComparingRack, name: str, order: list[str], **fields: Any) -> None:
    request = read_job(
        {
            "name": name,
            "count": 4,
            "command": COMMAND,
            "endpoints": order,
            "rank_order": "placed",
            **fields,
        }
    )
    await rack.desks.jobs.submit(request)
    await rack.state(name, "running")


async def test_what_it_ran_has_met_its_measurement_the_rest_is_open(tmp_path: Path) -> None:
    rack = ComparingRack(tmp_path)
    await rack.up()
    done = await compared(rack)
    found = await predictions(rack)
    assert set(found) == {"measure-m1", "measure-m1-2", "measurement/m1-open"}
    local = found["measure-m1-2"]
    assert local.cause == "compare" and local.measured_s == pytest.approx(0.2)
    assert local.error == pytest.approx(row(done, "local")["error"])
    hybrid = found["measurement/m1-open"]
    assert hybrid.homes == row(done, "hybrid")["homes"]
    assert hybrid.step_s and hybrid.step_s.low == row(done, "hybrid")["predicted_step_s"]["low"]
    assert rack.desks.advice.predictions({"other"}) == []
    await rack.down()


async def test_the_users_job_meets_it_after_a_restart(tmp_path: Path) -> None:
    rack = ComparingRack(tmp_path)
    await rack.up()
    done = await compared(rack)
    hybrid = row(done, "hybrid")
    await rack.down()
    await rack.up()
    kept = rack.see.measurements["m1"].fabric
    assert kept is not None and (kept.fits, kept.ring_share) == (FITS, 0.9)
    await go_there(rack, hybrid["homes"])
    await submit(rack, "other", hybrid["endpoints"], command=["train", "--slow"])

    async def looked() -> bool:
        return rack.parts.meter.current(rack.see.jobs["other"], rack.homes()) is not None

    await rack.until(looked)
    assert (await predictions(rack))["measurement/m1-open"].state == "open"
    await rack.desks.jobs.cancel("other")
    await rack.state("other", "cancelled")
    await submit(rack, "red", hybrid["endpoints"])

    async def met() -> bool:
        return "red" in await predictions(rack)

    await rack.until(met)
    found = (await predictions(rack))["red"]
    assert found.measured_s == pytest.approx(HYBRID_S) and found.error is not None
    await rack.down()
    await rack.up()
    assert (await predictions(rack))["red"].error == found.error
    await rack.down()


async def test_a_job_that_has_ended_already_meets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rack = ComparingRack(tmp_path)
    await rack.up()
    hybrid = row(await compared(rack), "hybrid")
    monkeypatch.setattr(rack.parts.meter, "current", lambda job, homes: None)
    await go_there(rack, hybrid["homes"])
    await submit(rack, "red", hybrid["endpoints"])
    for rank in range(4):
        rack.engine.exit("red", rank, 0)
    await rack.state("red", "completed")

    async def met() -> bool:
        return "red" in await predictions(rack)

    await rack.until(met)
    await rack.down()


async def test_who_compares_again_replaces_the_open_prediction(tmp_path: Path) -> None:
    rack = ComparingRack(tmp_path)
    await rack.up()
    await compared(rack, 1)
    await compared(rack, 2)
    found = rack.desks.advice.predictions()
    assert [p.job for p in found if p.state == "open"] == ["measurement/m2"]
    assert len(found) == 5
    await rack.down()


async def test_another_projects_job_does_not_meet_it(tmp_path: Path) -> None:
    rack = ComparingRack(tmp_path)
    await rack.up()
    hybrid = row(await compared(rack), "hybrid")
    state = rack.parts.state
    (open_,) = [p for p in state.predictions.values() if p.state == "open"]
    state.predictions.put(replace(open_, project="secret"))
    await go_there(rack, hybrid["homes"])
    await submit(rack, "red", hybrid["endpoints"])
    await rack.until(lambda: rack.parts.meter.current(state.jobs["red"], rack.homes()))
    await rack.parts.predictions.check()
    assert state.predictions[open_.id].state == "open"
    await rack.down()


async def test_homes_of_jobs_and_strange_names_are_refused(tmp_path: Path) -> None:
    rack = ComparingRack(tmp_path)
    await rack.up()
    await submit(rack, "red", ["gpu0", "gpu1", "gpu2", "gpu3"])
    plan = rack.desks.plans.make_plan
    for homes, code in (
        ({"gpu0": "as1"}, "conflict"),
        ({"gpu9": "as1"}, "not_found"),
        ({"gpu5": "as9"}, "not_found"),
    ):
        with pytest.raises(ServiceError) as refused:
            await plan(PlanRequest(homes=homes))
        assert refused.value.code == code
    with pytest.raises(ServiceError, match="not both"):
        await plan(PlanRequest(homes={"gpu5": "as0"}, job="red"))
    same = await plan(PlanRequest(homes={"gpu0": "as0", "gpu5": "as1"}))
    assert same.empty and same.optimal
    await rack.down()
