"""Readings of what is not a rank: the latest of each object, within the catalogue's bounds."""

from __future__ import annotations

from controller.telemetry.latest import LatestReadings
from readings.reading import Object

SERVER = Object.SERVER


def test_a_value_stands_for_the_time_that_the_catalogue_gives_it() -> None:
    now = 100.0
    latest = LatestReadings(lambda: now)
    latest.report(SERVER, "s0", {"load": 1.5})
    now = 102.0
    latest.report(SERVER, "s0", {"memory_available_bytes": 7})
    assert latest.of(SERVER, "s0") == {"load": 1.5, "memory_available_bytes": 7}
    assert latest.of(SERVER, "s1") is None
    now = 104.0
    assert latest.of(SERVER, "s0") == {"memory_available_bytes": 7}
    now = 200.0
    assert latest.of(SERVER, "s0") is None


def test_other_readings_and_values_beyond_bounds_are_not_kept() -> None:
    latest = LatestReadings(lambda: 0.0)
    latest.report(SERVER, "s0", {"load": -1.0, "lit_ports": 3, "fan": 1.0})
    assert latest.of(SERVER, "s0") is None
    latest.report(Object.SWITCH, "ocs0", {"lit_ports": 3})
    assert latest.of(Object.SWITCH, "ocs0") == {"lit_ports": 3}
