"""How runs end: at their limit, too short to be recorded, or not at all because none is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from controller.base.errors import ServiceError
from controller.devices.engine import Recording
from measure.envelope import Body, Json, Row
from measure.kinds import Line, MeasuredSite, Run, RunEnd
from tests.parts.controller.comms import recorded
from tests.parts.controller.echo import Echo, MeasuringRack


@dataclass(slots=True)
class Knowing(Echo):
    """Needs no run, as a comparison that only predicts; ``rows`` is what it knows."""

    rows: int = 1

    def runs(self, settings: Row, fabric: MeasuredSite, seed: int) -> Sequence[Run]:
        return []

    def more(
        self,
        settings: Row,
        fabric: MeasuredSite,
        seed: int,
        lines: Sequence[Line],
        ends: Sequence[RunEnd],
    ) -> Sequence[Run]:
        return []

    def body(
        self,
        settings: Row,
        fabric: MeasuredSite,
        seed: int,
        lines: Sequence[Line],
        ends: Sequence[RunEnd],
    ) -> Body:
        return Body(rows=[{"known": number} for number in range(self.rows)])


@dataclass(slots=True)
class Facts(Echo):
    """Keeps what runs end with."""

    def body(
        self,
        settings: Row,
        fabric: MeasuredSite,
        seed: int,
        lines: Sequence[Line],
        ends: Sequence[RunEnd],
    ) -> Body:
        def said(end: RunEnd) -> Mapping[str, Json]:
            facts = end.facts
            return {
                "completed": end.completed,
                "reason": end.reason,
                "steps": facts.steps if facts else None,
            }

        return Body(rows=[said(end) for end in ends])


async def test_what_needs_no_run_completes(tmp_path: Path) -> None:
    rack = MeasuringRack(tmp_path, Knowing())
    await rack.up()
    await rack.measure("gpu0")
    done = await rack.ended("m1")
    assert (done.state, done.valid, done.endpoints) == ("completed", True, [])
    assert done.result is not None and done.result.rows == [{"known": 0}]
    assert not rack.see.jobs.promised
    await rack.down()
    await rack.up()
    assert (await rack.ended("m1")).state == "completed"
    await rack.down()


async def test_without_a_row_there_is_no_result(tmp_path: Path) -> None:
    rack = MeasuringRack(tmp_path, Knowing(rows=0))
    await rack.up()
    await rack.measure()
    assert (await rack.ended("m1")).state == "failed"
    await rack.down()


async def test_other_kinds_have_something_to_run(tmp_path: Path) -> None:
    rack = MeasuringRack(tmp_path)
    await rack.up()
    with pytest.raises(ServiceError, match="nothing to run"):
        await rack.measure("gpu0", settings={"count": 0})
    await rack.down()


@pytest.mark.parametrize("lines", [0, 1])
async def test_a_run_at_its_limit_counts_with_what_it_printed(tmp_path: Path, lines: int) -> None:
    rack = MeasuringRack(tmp_path, Facts(timeout_s=0.2))
    await rack.up()
    await rack.measure("gpu0")
    await rack.running("measure-m1")
    rack.engine.output["measure-m1", 0] = (json.dumps({"probe": "echo", "value": 1}),) * lines
    done = await rack.ended("m1")
    assert rack.desks.jobs.job("measure-m1").state == "failed"
    assert done.state == ("completed" if lines else "failed")
    assert done.result is not None
    (row,) = done.result.rows
    assert row["completed"] == bool(lines) and "time limit" in row["reason"]
    await rack.down()


async def test_a_program_that_fails_is_no_limit(tmp_path: Path) -> None:
    rack = MeasuringRack(tmp_path, Facts())
    await rack.up()
    await rack.measure("gpu0")
    await rack.finish("measure-m1", code=3)
    done = await rack.ended("m1")
    assert done.state == "failed" and done.result is not None
    assert done.result.rows[0]["completed"] is False
    await rack.down()


@pytest.mark.parametrize("record", ["counts", "off"])
async def test_a_job_shorter_than_the_reading_of_recordings_has_facts(
    tmp_path: Path, record: str
) -> None:
    rack = MeasuringRack(tmp_path, Facts(record=record))
    await rack.up()
    await rack.measure("gpu0", "gpu1")
    await rack.running("measure-m1")
    assert rack.parts.comms.facts("measure-m1") is None
    rack.engine.recorded = recorded(rack, 30, job="measure-m1")
    await rack.finish("measure-m1")
    done = await rack.ended("m1")
    assert done.result is not None
    assert (done.result.rows[0]["steps"] is not None) == (record == "counts")
    await rack.down()


async def test_agents_that_do_not_tell_hold_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rack = MeasuringRack(tmp_path, Facts(record="counts"))
    await rack.up()

    async def silent(timeout_s: float, job: str, most: int) -> list[Recording]:
        raise TimeoutError

    monkeypatch.setattr(rack.engine, "recordings", silent)
    await rack.measure("gpu0")
    await rack.finish("measure-m1")
    done = await rack.ended("m1")
    assert done.state == "completed" and done.result is not None
    assert done.result.rows[0]["steps"] is None
    await rack.down()
