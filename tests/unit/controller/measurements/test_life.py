from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from controller.base.errors import ServiceError
from controller.measurements.runner import QUEUE_S
from controller.schema.insight.measurements import MeasurementImport
from controller.schema.submit.request import JobRequest
from tests.parts.controller.echo import Echo, MeasuringRack, environment


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[MeasuringRack]:
    rack = MeasuringRack(tmp_path)
    await rack.up()
    yield rack
    await rack.down()


async def test_a_measurement_is_a_job_whose_lines_become_rows(site: MeasuringRack) -> None:
    view = await site.measure("gpu1", "gpu0", project="default")
    assert (view.id, view.state, view.user) == ("m1", "pending", "alice")
    await site.finish("measure-m1")
    done = await site.ended("m1")
    assert (done.state, done.valid, done.invalid_because) == ("completed", True, [])
    assert done.result is not None
    assert done.result.rows == [
        {"run": 0, "rank": 0, "value": 1},
        {"run": 0, "rank": 1, "value": 1},
    ]
    assert done.result.jobs == ["measure-m1"] and done.result.source == "emulated"
    assert done.result.endpoints == ["gpu1", "gpu0"]
    job = site.service.desks.jobs.job("measure-m1")
    assert job.endpoints == ["gpu1", "gpu0"] and job.pinned
    assert all(spec.probe for spec in site.engine.specs["measure-m1"])
    assert not site.see.jobs.promised


async def test_runs_follow_each_other_and_the_light_is_put_back(tmp_path: Path) -> None:
    rack = MeasuringRack(tmp_path, Echo(homes={1: {"gpu0": "as1"}}))
    await rack.up()
    before = rack.homes()
    assert before["gpu0"] == "as0"
    await rack.measure("gpu0", settings={"count": 2})
    await rack.finish("measure-m1")
    await rack.running("measure-m1-2")
    assert rack.homes()["gpu0"] == "as1"
    await rack.finish("measure-m1-2")
    done = await rack.ended("m1")
    assert done.state == "completed" and done.valid
    assert [run.homes for run in done.runs] == [{"gpu0": "as0"}, {"gpu0": "as1"}]
    assert rack.homes() == before
    await rack.down()


async def test_runs_of_one_group_run_at_once(tmp_path: Path) -> None:
    rack = MeasuringRack(tmp_path, Echo(together=True, split=1))
    await rack.up()
    await rack.measure("gpu0", "gpu1", settings={"count": 2})
    await rack.running("measure-m1")
    await rack.running("measure-m1-2")
    await rack.finish("measure-m1")
    await rack.finish("measure-m1-2")
    assert (await rack.ended("m1")).state == "completed"
    await rack.down()


async def test_homes_that_are_asked_for_hold_during_the_run(site: MeasuringRack) -> None:
    await site.measure("gpu0", "gpu1", homes={"gpu0": "as1"})
    await site.running("measure-m1")
    assert site.homes()["gpu0"] == "as1"
    await site.finish("measure-m1")
    done = await site.ended("m1")
    assert done.result is not None and done.result.homes["gpu0"] == "as1"
    assert site.homes()["gpu0"] == "as0"


async def test_without_names_all_idle_endpoints_are_measured(site: MeasuringRack) -> None:
    await site.service.desks.jobs.submit(
        JobRequest(name="red", count=2, endpoints=["gpu0", "gpu1"])
    )
    await site.state("red", "running")
    view = await site.measure()
    assert view.endpoints == ["gpu2", "gpu3", "gpu4", "gpu5"]


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"endpoints": ["gpu9"]}, "not_found", "gpu9"),
        ({"endpoints": ["gpu0", "gpu0"]}, "invalid", "twice"),
        ({"endpoints": ["red"]}, "not_found", "red"),
        ({"endpoints": ["gpu2"]}, "conflict", "carries job red"),
        ({"endpoints": ["gpu0"], "homes": {"gpu0": "as9"}}, "not_found", "as9"),
        ({"endpoints": ["gpu0"], "homes": {"gpu1": "as0"}}, "invalid", "gpu1"),
        ({"endpoints": ["gpu0"], "settings": {"count": "x"}}, "invalid", "count"),
        ({"endpoints": ["gpu0"], "settings": {"count": 0}}, "invalid", "nothing to run"),
        ({"endpoints": ["gpu0"], "settings": {"count": 2000}}, "invalid", "limit"),
        ({"type": "scaling"}, "invalid", "measurement scaling does not exist"),
    ],
)
async def test_what_cannot_be_measured_is_refused(
    site: MeasuringRack, fields: dict[str, object], code: str, text: str
) -> None:
    await site.service.desks.jobs.submit(JobRequest(name="red", count=1, endpoints=["gpu2"]))
    await site.state("red", "running")
    with pytest.raises(ServiceError, match=text) as refused:
        await site.measure(**fields)
    assert refused.value.code == code
    assert site.service.desks.measurements.views() == []


async def test_a_dry_run_shows_the_runs_and_starts_nothing(site: MeasuringRack) -> None:
    view = await site.measure("gpu0", settings={"count": 3}, dry_run=True)
    assert view.id == "" and [run.label for run in view.runs] == ["run 0", "run 1", "run 2"]
    assert site.service.desks.measurements.views() == []
    assert (await site.measure("gpu0")).id == "m1"


async def test_two_run_at_once_on_different_endpoints_only(site: MeasuringRack) -> None:
    await site.measure("gpu0", "gpu1")
    with pytest.raises(ServiceError, match="is measured by m1") as refused:
        await site.measure("gpu1", "gpu2")
    assert refused.value.code == "conflict"
    await site.measure("gpu2", "gpu3")
    await site.finish("measure-m1")
    await site.finish("measure-m2")
    assert (await site.ended("m1")).valid and (await site.ended("m2")).valid


async def test_no_job_gets_the_endpoints_between_two_runs(site: MeasuringRack) -> None:
    await site.measure("gpu0", settings={"count": 2})
    await site.running("measure-m1")
    await site.service.desks.jobs.submit(JobRequest(name="red", count=1, endpoints=["gpu0"]))
    await site.finish("measure-m1")
    await site.running("measure-m1-2")
    assert site.service.desks.jobs.job("red").state == "pending"
    await site.finish("measure-m1-2")
    await site.ended("m1")
    await site.state("red", "running")


async def test_cancel_ends_the_job_and_puts_the_light_back(site: MeasuringRack) -> None:
    await site.measure("gpu0", "gpu1", homes={"gpu0": "as1"})
    await site.running("measure-m1")
    view = await site.service.desks.measurements.cancel("m1")
    assert (view.state, view.reason) == ("cancelled", "cancelled by the operator")
    assert site.service.desks.jobs.job("measure-m1").state == "cancelled"
    assert site.homes()["gpu0"] == "as0"
    assert view.valid is None
    with pytest.raises(ServiceError, match="already"):
        await site.service.desks.measurements.cancel("m1")


async def test_cancelling_its_job_ends_the_measurement(site: MeasuringRack) -> None:
    await site.measure("gpu0", settings={"count": 2})
    await site.running("measure-m1")
    await site.service.desks.jobs.cancel("measure-m1")
    done = await site.ended("m1")
    assert (done.state, done.reason) == ("cancelled", "its job measure-m1 was cancelled")
    assert "measure-m1-2" not in site.see.jobs


async def test_a_failed_run_is_told_and_the_others_count(site: MeasuringRack) -> None:
    await site.measure("gpu0", settings={"count": 2})
    error = json.dumps({"probe": "error", "message": "no such device"})
    await site.finish("measure-m1", error, code=1)
    await site.finish("measure-m1-2")
    done = await site.ended("m1")
    assert done.state == "completed" and done.result is not None
    assert done.result.summary == {"runs": 1}


async def test_without_a_completed_run_it_fails_with_the_probes_words(
    site: MeasuringRack,
) -> None:
    await site.measure("gpu0")
    error = json.dumps({"probe": "error", "message": "no such device"})
    await site.finish("measure-m1", error, code=1)
    done = await site.ended("m1")
    assert done.state == "failed" and "no such device" in done.reason
    assert done.result is None


async def test_a_kind_that_breaks_fails_the_measurement_only(tmp_path: Path) -> None:
    rack = MeasuringRack(tmp_path, Echo(broken=True))
    await rack.up()
    await rack.measure("gpu0", homes={"gpu0": "as1"})
    await rack.finish("measure-m1")
    done = await rack.ended("m1")
    assert done.state == "failed" and "ZeroDivisionError" in done.reason
    assert rack.homes()["gpu0"] == "as0"
    await rack.down()


async def test_a_missing_image_is_refused_before_anything_is_kept(site: MeasuringRack) -> None:
    site.engine.absent.add("image:1")
    await site.measure("gpu0")
    done = await site.ended("m1")
    assert done.state == "failed" and "image:1" in done.reason


async def test_hostile_lines_are_left_out(site: MeasuringRack) -> None:
    await site.measure("gpu0")
    await site.finish(
        "measure-m1",
        '{"probe":"echo","value":NaN}',
        '{"probe":"echo","value":1e999}',
        '{"probe":"echo","value":"\\ud800"}',
        "[" * 100_000,
        '{"probe":"echo","value":"' + "x" * 70_000 + '"}',
        '{"probe":"echo","value":7}',
    )
    done = await site.ended("m1")
    assert done.result is not None
    assert [row["value"] for row in done.result.rows] == [7]


async def test_a_busy_server_and_a_frozen_rank_make_it_invalid(site: MeasuringRack) -> None:
    await site.measure("gpu0")
    await site.running("measure-m1")
    await site.service.desks.jobs.pause("measure-m1")
    await site.service.desks.jobs.resume("measure-m1")
    await site.finish("measure-m1", environment("begin", 1.0, 9.5), '{"probe":"echo","value":7}')
    done = await site.ended("m1")
    assert done.valid is False and done.result is not None
    assert "job measure-m1 was frozen" in done.invalid_because
    assert any("busy" in reason for reason in done.invalid_because)
    assert done.result.environment.load_1m == 9.5 and done.result.environment.mtu == 1500


async def test_light_that_moves_beside_it_makes_it_invalid(site: MeasuringRack) -> None:
    await site.measure("gpu0")
    await site.running("measure-m1")
    await site.service.desks.plans.attach("gpu1", "as1", 30)
    await site.finish("measure-m1")
    done = await site.ended("m1")
    assert done.valid is False
    assert "moved light under as0" in done.invalid_because[0]


async def test_an_import_is_a_measurement_with_a_result(site: MeasuringRack) -> None:
    view = await site.service.desks.measurements.import_result(
        MeasurementImport(type="links", tool="osu", text="1 2.5"), "alice"
    )
    assert view.state == "completed" and view.result is not None
    assert view.result.source == "imported" and len(view.result.rows) == 2
    for tool, text, why in (
        ("fio", "1", "reads no file of fio"),
        ("osu", "x", "a file of osu"),
    ):
        with pytest.raises(ServiceError, match=why):
            await site.service.desks.measurements.import_result(
                MeasurementImport(type="links", tool=tool, text=text), "alice"
            )


async def test_an_ended_measurement_can_be_removed_and_its_id_is_never_used_again(
    site: MeasuringRack,
) -> None:
    await site.measure("gpu0")
    with pytest.raises(ServiceError, match="m1 is "):
        await site.service.desks.measurements.remove("m1")
    await site.finish("measure-m1")
    await site.ended("m1")
    await site.service.desks.measurements.remove("m1")
    await site.down()
    await site.up()
    with pytest.raises(ServiceError, match="measurement m1 does not exist"):
        await site.service.desks.measurements.view("m1")
    assert (await site.measure("gpu0")).id == "m2"


async def test_a_measurement_that_the_store_refuses_does_not_exist(site: MeasuringRack) -> None:
    site.disk.fault = "full"
    with pytest.raises(ServiceError):
        await site.measure("gpu0")
    assert site.service.desks.measurements.views() == []
    site.disk.release()
    await site.measure("gpu0")
    await site.finish("measure-m2")
    assert (await site.ended("m2")).valid


async def test_an_end_that_the_store_refuses_is_written_later(site: MeasuringRack) -> None:
    def full() -> None:
        site.disk.fault = "full"

    site.kind.on_body = full
    await site.measure("gpu0")
    await site.finish("measure-m1")
    await site.until(lambda: site.see.measurements["m1"].ended)
    site.disk.release()
    await site.service.journal.flush()
    await site.down()
    await site.up()
    done = await site.service.desks.measurements.view("m1")
    assert done.state == "completed" and done.result is not None


async def test_a_job_that_cannot_start_ends_its_run(
    site: MeasuringRack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.measure("gpu0")
    monkeypatch.setattr(site.parts.state, "unavailable", lambda: {"gpu0": "away"})
    await asyncio.sleep(QUEUE_S)
    done = await site.ended("m1")
    assert done.state == "failed" and "to start" in done.reason
    assert site.service.desks.jobs.job("measure-m1").state == "cancelled"


async def test_containers_that_do_not_start_fail_it(site: MeasuringRack) -> None:
    site.engine.broken.add("start")
    await site.measure("gpu0", homes={"gpu0": "as1"})
    done = await site.ended("m1")
    assert done.state == "failed" and "start broke" in done.reason
    assert site.homes()["gpu0"] == "as0"
