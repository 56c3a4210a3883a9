"""F13 and F23: flaps are damped, and a reader that is too slow is told to resynchronise."""

from __future__ import annotations

import pytest

from controller.devices.aggregators import AggregatorConnected, AggregatorLost, PortStatus
from controller.reconcile.damping import MAX_HOLD_S, SUPPRESS, Damper
from controller.state import events
from controller.state.events import EventLog
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack


def test_occasional_losses_are_not_a_flap() -> None:
    damper = Damper()
    assert not any(damper.lost("as0/1", n * 60.0) for n in range(100))


def test_flaps_hold_an_object_down_once_until_it_is_stable() -> None:
    damper = Damper()
    assert [damper.lost("as0/1", 0.1 * n) for n in range(8)].count(True) == 1
    assert damper.held("as0/1")
    assert not damper.calmed(5.0)
    assert damper.calmed(60.0) == ["as0/1"]
    assert not damper.held("as0/1")
    assert not damper.calmed(61.0)


def test_no_storm_holds_longer_than_the_limit_after_its_end() -> None:
    damper = Damper()
    for n in range(10_000):
        damper.lost("as0/1", 0.01 * n)
    assert damper.calmed(100.0 + MAX_HOLD_S + 1) == ["as0/1"]


async def test_a_storm_of_carrier_changes_emits_one_event_and_stops_placement(rack: Rack) -> None:
    point = rack.see.light.attachments["gpu0"]
    for _ in range(1000):
        rack.aggregators.post(PortStatus(point.aggregator, point.port, False))
        rack.aggregators.post(PortStatus(point.aggregator, point.port, True))
    about = [e for e in rack.desks.fabric.events(0, 1000) if e.object == "endpoint/gpu0"]
    words = [e.reason for e in about if e.reason != "Adopted"]
    assert words.count("Flapping") == 1
    assert len(words) <= 2 * (SUPPRESS + 1)
    await submit(rack, "red", 6)

    async def told() -> bool:
        return "its link is flapping" in str(rack.see.unavailable())

    await rack.until(told)
    assert rack.desks.jobs.job("red").state == "pending"


async def test_a_flapping_aggregator_is_not_used_until_it_is_stable(rack: Rack) -> None:
    for _ in range(10):
        rack.aggregators.post(AggregatorLost("as1"))
        rack.aggregators.post(AggregatorConnected("as1"))
    assert set(rack.see.unavailable()) == {"gpu2", "gpu3", "gpu5"}
    await rack.until(lambda: not rack.see.unavailable(), limit_s=120)
    assert [e for e in rack.desks.fabric.events(0, 1000) if e.reason == "Stable"]


def test_a_reader_that_was_too_slow_is_told_to_resynchronise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "KEPT", 5)
    log = EventLog(lambda: 1.0, lambda: 0)
    for n in range(20):
        log.add("info", "job/red", "Something", str(n))
    first, *rest = log.since(3, 100)
    assert (first.reason, first.message.split()[0]) == ("Resync", "12")
    assert [e.id for e in rest] == [16, 17, 18, 19, 20]
    assert [e.id for e in log.since(first.id, 100)] == [16, 17, 18, 19, 20]
    assert [e.id for e in log.since(18, 100)] == [19, 20]
