"""Ports and alarms of a switch: only cabled ports, one reading for many clients, clear errors."""

from __future__ import annotations

import asyncio

import pytest

from controller.base.errors import ServiceError
from ocs_driver.base import Alarm, PortHealth, PortInfo
from tests.parts.controller.rack import Rack
from tests.parts.controller.switch import FakeOcs


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


async def exchange(rack: Rack, switch: Measuring) -> None:
    """Put another switch with the same circuits in the rack's place."""
    await rack.down()
    switch.circuits, rack.switch = rack.switch.circuits, switch
    await rack.up()


async def test_concurrent_requests_share_one_reading_of_the_cabled_ports(rack: Rack) -> None:
    switch = Measuring()
    await exchange(rack, switch)
    read = await asyncio.gather(*(rack.desks.optics.read("ocs0") for _ in range(20)))
    assert switch.readings == 1
    assert all(view == read[0] for view in read)
    assert [(p.port, p.health, p.label) for p in read[0].ports] == [("1.1.1", "tuned", "rack 3")]
    assert [a.text for a in read[0].alarms] == ["low light"]


async def test_an_unknown_or_disconnected_switch_is_an_error(rack: Rack) -> None:
    with pytest.raises(ServiceError) as unknown:
        await rack.desks.optics.read("ocs9")
    assert (unknown.value.code, unknown.value.object) == ("not_found", "switch/ocs9")
    rack.switch.away = True
    await rack.until(lambda: not rack.parts.switches.connected())
    with pytest.raises(ServiceError) as away:
        await rack.desks.optics.read("ocs0")
    assert away.value.code == "unavailable"


async def test_the_number_and_length_of_alarms_shown_are_bounded(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def storm() -> tuple[Alarm, ...]:
        return tuple(Alarm(f"1.1.{n}", "major", "x" * 5000) for n in range(20_000))

    switch = Measuring()
    monkeypatch.setattr(switch, "alarms", storm)
    await exchange(rack, switch)
    shown = (await rack.desks.optics.read("ocs0")).alarms
    assert len(shown) == 501
    assert shown[-1].text == "and 19500 more"
    assert max(len(alarm.text) for alarm in shown) == 500


async def test_the_number_of_foreign_circuits_reported_is_bounded(rack: Rack) -> None:
    for n in range(2000):
        rack.switch.add(f"8.1.{n}", f"9.1.{n}", owner="other")
    state = rack.parts.state
    rack.parts.adopter.note_foreign("ocs0", await rack.switch.read())
    messages = [e.message for e in state.events.newer(0) if e.reason == "ForeignCircuit"]
    assert len(messages) == 21
    assert "1980 more" in messages[-1]
