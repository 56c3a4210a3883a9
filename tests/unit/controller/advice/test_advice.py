"""Advice over a whole controller, and what a second user sees of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from controller.api.scope.sight import Sight
from controller.base.errors import ServiceError
from controller.people.authz import Principal, Role
from controller.schema.insight.advice import WhatIfRequest
from controller.state.kept.measurements import MeasurementRecord
from controller.state.records import JobVolume
from tests.parts.controller.jobs import submit
from tests.parts.controller.steps import TOGETHER, started

ANN = Principal("ann", Role.USER, frozenset({"alpha"}))
BOB = Principal("bob", Role.USER, frozenset({"default"}))


async def test_a_scattered_job_is_advised_to_regroup_running_and_ended(tmp_path: Path) -> None:
    rack, recorder = await started(tmp_path)
    desks = rack.desks
    view = await desks.advice.advise("red")
    assert view.limit == "scatter"
    assert view.findings[0].command == "lightloom plan --job red"
    assert view.findings[0].gain and view.findings[0].gain.low > 0.3
    assert any("measure links" in text for text in view.unknown)
    assert [f.job for f in (await desks.advice.advise(None)).findings][:1] == ["red"]
    last = recorder("red")
    assert last is not None
    await rack.desks.jobs.cancel("red")
    recorder.kept["red"] = last
    ended = await desks.advice.advise("red")
    assert ended.limit == "scatter"
    assert ended.findings[0].command == ""
    assert ended.findings[0].gain == view.findings[0].gain
    assert (await desks.advice.advise(None)).findings == []
    await rack.down()


async def test_a_waiting_job_says_why_it_waits(tmp_path: Path) -> None:
    rack, _ = await started(tmp_path)
    await submit(rack, "big", 6)

    async def held() -> bool:
        return rack.desks.jobs.job("big").wait is not None

    await rack.until(held)
    view = await rack.desks.advice.advise("big")
    assert view.limit == "none"
    assert view.findings[0].text.startswith("it does not run: ")
    await rack.down()


async def test_a_second_user_sees_nothing_of_it(tmp_path: Path) -> None:
    rack, _ = await started(tmp_path)
    desks = rack.desks
    await desks.advice.whatif("red", WhatIfRequest(homes=TOGETHER))
    mine, theirs = (Sight(who, desks.jobs.owners) for who in (BOB, ANN))
    assert len(desks.advice.predictions(mine.projects())) == 1
    assert desks.advice.predictions(theirs.projects()) == []
    assert (await desks.advice.advise(None, mine.jobs())).findings
    assert (await desks.advice.advise(None, theirs.jobs())).findings == []
    assert (await desks.advice.advise("red", mine.jobs())).limit == "scatter"
    with pytest.raises(ServiceError, match="job red does not exist") as caught:
        await desks.advice.advise("red", theirs.jobs())
    assert caught.value.code == "not_found"
    mine.require_job("red")
    with pytest.raises(ServiceError, match="job red does not exist"):
        theirs.require_job("red")
    await rack.down()


async def test_an_unknown_job_is_not_found(tmp_path: Path) -> None:
    rack, _ = await started(tmp_path)
    with pytest.raises(ServiceError, match="job green does not exist"):
        await rack.desks.advice.advise("green")
    await rack.down()


async def test_a_measured_loader_tells_of_the_jobs_that_use_its_volume(tmp_path: Path) -> None:
    rack, recorder = await started(tmp_path)
    state = rack.parts.state

    def measured(ident: str, volume: str, ceiling: float, *, valid: bool = True) -> None:
        settings = {"volume": volume, "batch": 32}
        row = {"io_limit_bps": None, "memory_bytes": None, "ranks": 1}
        rows = [row | {"ceiling_samples_s": ceiling}]
        record = MeasurementRecord(
            id=ident,
            type="input",
            state="completed",
            submitted_at=0,
            settings=settings,
            valid=valid,
        )
        state.measurements.put(record)
        result = {"id": ident, "settings": settings, "rows": rows}
        state.measurements.results[ident] = json.dumps(result)

    async def limit(job: str = "red") -> str | None:
        return (await rack.desks.advice.advise(job)).limit

    def mounts(job: str, *volumes: str) -> None:
        record = state.jobs[job]
        used = tuple(JobVolume(volume=v, path=f"/{v}", read_only=True) for v in volumes)
        state.jobs.change(job, request=replace(record.request, volumes=used))

    facts = recorder("red")
    assert facts is not None
    measured("m1", "images", 32 / facts.step_s)
    measured("m2", "results", 1e6)
    measured("m3", "images", 1e6, valid=False)
    assert await limit() != "input"
    mounts("red", "results")
    assert await limit() != "input"
    mounts("red", "results", "images")
    view = await rack.desks.advice.advise("red")
    found = next(f for f in view.findings if f.limit == "input")
    assert any("m1" in text for text in found.evidence)
    everything = await rack.desks.advice.advise(None)
    assert "input" in [f.limit for f in everything.findings]
    await rack.down()
