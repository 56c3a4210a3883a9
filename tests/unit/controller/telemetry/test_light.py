"""Light over time: it survives a restart and is read by port."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from controller.base.errors import ServiceError
from controller.telemetry.history import LIGHT_COLUMNS, LIGHT_LEVELS, RingBuffer
from controller.telemetry.latest import LatestReadings
from controller.telemetry.light import OpticalPower
from controller.views.light import power_series
from ocs_driver.base import PortPower
from ocs_driver.errors import OcsUnreachable
from readings.reading import Object
from tests.parts.controller.rack import Rack

START = 1_800_000_000.0


class Meters:
    """Switches whose light falls by half a decibel per measurement."""

    def __init__(self) -> None:
        self.measured = 0
        self.away = False

    def connected(self) -> frozenset[str]:
        return frozenset({"ocs0"})

    async def power(self, switch: str, ports: tuple[str, ...]) -> tuple[PortPower, ...]:
        if self.away:
            raise OcsUnreachable("unreachable", switch, "no answer")
        self.measured += 1
        return tuple(PortPower(port, -3.0 - self.measured / 2, None) for port in ports)


def readings_of(rack: Rack) -> LatestReadings:
    return rack.parts.telemetry.readings


async def measured(rack: Rack, directory: Path | None, times: int, meters: Meters) -> OpticalPower:
    power = OpticalPower(rack.parts.state, meters, readings_of(rack), directory)
    for _ in range(times):
        await measure_later(rack, power)
    return power


async def measure_later(rack: Rack, power: OpticalPower) -> None:
    """Measure again 15 s later."""
    now = rack.see.now() + 15.0
    rack.parts.state.clock = lambda: now
    await power.measure()


async def test_every_measurement_is_kept_and_survives_a_restart(rack: Rack, tmp_path: Path) -> None:
    rack.parts.state.clock = lambda: START
    port = rack.see.cables["gpu0"].fiber.port
    meters = Meters()
    first = await measured(rack, tmp_path, 4, meters)
    await first.flush()
    again = OpticalPower(rack.parts.state, meters, readings_of(rack), tmp_path)
    series = power_series(again, "ocs0", port, 60.0)
    assert (series.far, series.interval_s) == ("gpu0", 15.0)
    assert series.power_in_dbm == [-3.5, -4.0, -4.5, -5.0]
    assert series.power_out_dbm == [None] * 4
    assert series.times == [START + 15.0 * i for i in range(1, 5)]


async def test_after_a_day_the_light_is_a_mean_of_five_minutes(rack: Rack) -> None:
    rack.parts.state.clock = lambda: START
    port = rack.see.cables["gpu0"].fiber.port
    power = await measured(rack, None, 21, Meters())
    series = power_series(power, "ocs0", port, 2 * 86400.0)
    assert series.interval_s == 300.0
    assert series.power_in_dbm == [pytest.approx(-3.0 - sum(range(1, 20)) / 19 / 2, abs=1e-3)]


async def test_a_switch_that_does_not_answer_leaves_a_gap(rack: Rack) -> None:
    rack.parts.state.clock = lambda: START
    port = rack.see.cables["gpu0"].fiber.port
    meters = Meters()
    power = await measured(rack, None, 1, meters)
    meters.away = True
    for _ in range(2):
        await measure_later(rack, power)
    assert power_series(power, "ocs0", port, 60.0).power_in_dbm == [-3.5]


async def test_a_port_that_the_site_does_not_use_is_an_error(rack: Rack) -> None:
    with pytest.raises(ServiceError, match=r"no port ocs0/9\.9\.9") as caught:
        rack.desks.live.power_series("ocs0", "9.9.9", 60.0)
    assert (caught.value.code, caught.value.object) == ("not_found", "switch/ocs0")


async def test_a_site_without_optical_switches_has_an_empty_history(
    tmp_path: Path,
) -> None:
    ring = RingBuffer(tmp_path, [], stem="light", columns=LIGHT_COLUMNS, levels=LIGHT_LEVELS)
    ring.append(START, np.empty((0, 2), dtype=np.float32))
    assert ring.read(START - 60, START).values.shape == (1, 0, 2)


async def test_a_switch_reports_how_many_ports_receive_light(rack: Rack) -> None:
    class Some(Meters):
        light = (-3.0, -60.0)

        async def power(self, switch: str, ports: tuple[str, ...]) -> tuple[PortPower, ...]:
            seen = (*self.light, *[None] * (len(ports) - len(self.light)))
            return tuple(PortPower(*one, None) for one in zip(ports, seen, strict=True))

    meters = Some()
    await measured(rack, None, 1, meters)
    assert readings_of(rack).of(Object.SWITCH, "ocs0") == {"lit_ports": 1}
    (switch,) = rack.desks.fabric.switches()
    assert switch.readings == {"lit_ports": 1}
    meters.light = ()  # it may have no meters
    rack.parts.state.clock = lambda: START
    before = readings_of(rack).of(Object.SWITCH, "ocs0")
    await measured(rack, None, 1, meters)
    assert readings_of(rack).of(Object.SWITCH, "ocs0") == before
