"""A restart of the daemon in every state of a measurement: it goes on, and never runs twice."""

from __future__ import annotations

from pathlib import Path

from controller.state.kept.measurements import MEASUREMENTS
from tests.parts.controller.echo import Echo, MeasuringRack
from tests.parts.controller.rack import crash


async def began(tmp_path: Path) -> MeasuringRack:
    rack = MeasuringRack(tmp_path, Echo(homes={0: {"gpu0": "as1"}}))
    await rack.up()
    await rack.measure("gpu0", "gpu1", settings={"count": 2})
    return rack


def submitted(rack: MeasuringRack) -> list[str]:
    return [name for call, name in rack.engine.calls if call == "start"]


async def test_a_job_goes_on_through_a_restart(tmp_path: Path) -> None:
    rack = await began(tmp_path)
    await rack.running("measure-m1")
    await crash(rack)
    await rack.up()
    await rack.finish("measure-m1")
    await rack.finish("measure-m1-2")
    done = await rack.ended("m1")
    assert done.state == "completed" and done.result is not None
    assert {row["run"] for row in done.result.rows} == {0, 1}
    assert submitted(rack) == ["measure-m1", "measure-m1-2"]
    assert done.valid is False and "restarted" in done.invalid_because[0]
    assert rack.homes()["gpu0"] == "as0"
    await rack.down()


async def test_a_job_that_ended_meanwhile_is_read_again(tmp_path: Path) -> None:
    rack = await began(tmp_path)
    await rack.finish("measure-m1")
    await rack.running("measure-m1-2")
    await crash(rack)
    await rack.finish_away("measure-m1-2")
    await rack.up()
    done = await rack.ended("m1")
    assert done.result is not None and {row["run"] for row in done.result.rows} == {0, 1}
    assert submitted(rack) == ["measure-m1", "measure-m1-2"]
    await rack.down()


async def test_a_restart_at_once_begins_it(tmp_path: Path) -> None:
    rack = await began(tmp_path)
    await crash(rack)
    await rack.up()
    await rack.finish("measure-m1")
    await rack.finish("measure-m1-2")
    assert (await rack.ended("m1")).state == "completed"
    assert submitted(rack).count("measure-m1-2") == 1
    assert rack.homes()["gpu0"] == "as0"
    await rack.down()


async def test_a_cancel_before_a_restart_still_holds(tmp_path: Path) -> None:
    rack = await began(tmp_path)
    await rack.running("measure-m1")
    rack.parts.state.measurements.change("m1", cancelling=True)
    await rack.parts.state.record(MEASUREMENTS.row("m1"))
    await crash(rack)
    await rack.up()
    done = await rack.ended("m1")
    assert done.state == "cancelled"
    assert rack.desks.jobs.job("measure-m1").state == "cancelled"
    assert rack.homes()["gpu0"] == "as0"
    await rack.down()


async def test_a_result_outlives_restarts(tmp_path: Path) -> None:
    rack = await began(tmp_path)
    await rack.finish("measure-m1")
    await rack.finish("measure-m1-2")
    before = await rack.ended("m1")
    await crash(rack)
    await rack.up()
    assert await rack.desks.measurements.view("m1") == before
    await rack.down()


async def test_a_type_that_is_gone_fails(tmp_path: Path) -> None:
    rack = await began(tmp_path)
    await rack.running("measure-m1")
    await crash(rack)
    rack.kind.name = "storage"
    await rack.up()
    done = await rack.ended("m1")
    assert done.state == "failed" and "no measurement links" in done.reason
    await rack.down()
