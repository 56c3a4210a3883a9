"""The names of measurements' jobs are reserved, so that no job keeps a measurement from running."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from controller.base.errors import ServiceError
from controller.schema.insight.measurements import MeasurementRequest
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack


@pytest_asyncio.fixture
async def rack(tmp_path: Path) -> AsyncIterator[Rack]:
    one = Rack(tmp_path)
    await one.up()
    yield one
    await one.down()


@pytest.mark.parametrize("name", ["measure-m1", "measure-m1-2", "measure-m123-45"])
async def test_no_job_takes_the_name_of_a_measurement(rack: Rack, name: str) -> None:
    with pytest.raises(ServiceError) as refused:
        await submit(rack, name, 1, project="measure")
    assert (refused.value.code, refused.value.hint) == ("invalid", "choose another name")
    for free in ("measure-1", "measure-mine", "measure-m1-b", "measure-m"):
        await submit(rack, free, 1, project="measure")


async def test_a_measurement_takes_its_own_name(rack: Rack) -> None:
    wanted = MeasurementRequest(type="links", endpoints=["gpu0", "gpu2"])
    view = await rack.desks.measurements.start(wanted, "ann")
    await rack.until(lambda: f"measure-{view.id}" in rack.see.jobs)
