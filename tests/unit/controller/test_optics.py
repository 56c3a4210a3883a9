"""Ports and alarms of a switch: only cabled ports, one reading for many readers, clear errors."""

from __future__ import annotations

import asyncio

import pytest

from controller.errors import ServiceError
from ocs_driver.base import Alarm, PortHealth, PortInfo
from tests.unit.controller.fakes import FakeOcs, Rack


class Measuring(FakeOcs):
    def __init__(self) -> None:
        super().__init__()
        self.readings = 0

    async def inventory(self) -> tuple[PortInfo, ...]:
        self.readings += 1
        await asyncio.sleep(0)
        return (
            PortInfo("1.1.1", PortHealth.TUNED, "rack 3", -3.0, -4.0),
            PortInfo("9.9.9", PortHealth.BLOCKED),
        )

    async def alarms(self) -> tuple[Alarm, ...]:
        return (Alarm("1.1.1", "major", "low light"),)


async def test_many_readers_one_reading_of_cabled_ports(rack: Rack) -> None:
    switch = Measuring()
    rack.service._switches._lines["ocs0"].driver = switch
    read = await asyncio.gather(*(rack.service.optics("ocs0") for _ in range(20)))
    assert switch.readings == 1
    assert all(view == read[0] for view in read)
    assert [(p.port, p.health, p.label) for p in read[0].ports] == [("1.1.1", "tuned", "rack 3")]
    assert [a.text for a in read[0].alarms] == ["low light"]


async def test_a_switch_that_is_unknown_or_away(rack: Rack) -> None:
    with pytest.raises(ServiceError) as unknown:
        await rack.service.optics("ocs9")
    assert (unknown.value.code, unknown.value.object) == ("not_found", "switch/ocs9")
    rack.service._switches._lines["ocs0"].there.clear()
    with pytest.raises(ServiceError) as away:
        await rack.service.optics("ocs0")
    assert away.value.code == "unavailable"
