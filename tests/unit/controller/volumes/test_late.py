"""Data that could not be measured in time is told, and ends nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from agentlink.values import Scope
from base import clock
from controller.devices.engine import OfferedVolume, VolumeData
from tests.parts.controller.jobs import events
from tests.parts.controller.rack import Rack


async def test_data_that_is_not_measured_in_time_is_an_event(rack: Rack) -> None:
    server = rack.engine.site.servers[0].name
    data = VolumeData(
        Scope.JOB, "vision.red", quota_bytes=1 << 30, created_at=1.0, measured_at=1.0, jobs=("red",)
    )

    def offer(one: VolumeData) -> None:
        rack.engine.offered = {server: (OfferedVolume("scratch", False, data=(one,)),)}

    offer(data)
    await asyncio.sleep(120)
    assert await events(rack, "DataNotMeasured") == [], "it is used for two minutes"
    await asyncio.sleep(300)
    (text,) = await events(rack, "DataNotMeasured")
    assert "the data of vision.red in volume scratch" in text
    for _ in range(60):
        offer(replace(data, measured_at=clock.time()))
        await asyncio.sleep(10)
    assert len(await events(rack, "DataNotMeasured")) == 1
