"""Rates from port counters, and the callback after each second."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller.devices.aggregators import AttachPoint
from controller.devices.counters import PortBlock, PortCounters
from controller.schema.plans import PlanRequest
from controller.schema.stream import SampleView
from controller.telemetry.throughput import AT_ONCE, EndpointRates, Telemetry
from tests.parts.controller.jobs import scattered, submit
from tests.parts.controller.rack import Rack


@pytest.fixture(autouse=True)
def only_own_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the controller's own readings: one between two of the test's would change the rates."""

    async def none(_: Telemetry) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Telemetry, "run_counters", none)


async def test_rates_use_the_aggregators_own_clock(rack: Rack) -> None:
    await submit(rack, "red", 1, endpoints=["gpu0"])
    await rack.state("red", "running")
    telemetry = rack.parts.telemetry
    at = rack.see.light.attachments["gpu0"]
    rack.aggregators.counters[at] = 1000
    await telemetry.tick()
    rack.aggregators.counters[at] = 2000
    await telemetry.tick()
    # The port received 1000 bytes and sent 2000 in one second of the aggregator's clock.
    assert telemetry.port_rates(at) == EndpointRates(rx_bps=8000, tx_bps=16000)
    assert telemetry.rates("gpu0") == EndpointRates(rx_bps=16000, tx_bps=8000)
    job = rack.desks.jobs.job("red")
    assert (job.rx_bps, job.tx_bps) == (16000, 8000)
    series = await rack.desks.live.series(60)
    (line,) = series.containers
    assert (line.job, line.endpoint, line.rx_bps[-1]) == ("red", "gpu0", 16000)
    assert len(line.rx_bps) == len(series.times)


async def test_counters_that_fall_give_no_rate(rack: Rack) -> None:
    telemetry = rack.parts.telemetry
    at = rack.see.light.attachments["gpu0"]
    rack.aggregators.counters[at] = 5000
    await telemetry.tick()
    rack.aggregators.counters[at] = 10
    await telemetry.tick()
    assert telemetry.rates("gpu0") == EndpointRates()


async def test_the_second_of_a_move_adds_both_ports(rack: Rack) -> None:
    telemetry, state = rack.parts.telemetry, rack.parts.state
    old, new = state.light.attachments["gpu0"], AttachPoint("as1", 4)
    await telemetry.tick()
    rack.aggregators.counters[old] = 100
    rack.aggregators.counters[new] = 200
    state.light.attachments["gpu0"] = new
    await telemetry.tick()
    assert telemetry.rates("gpu0").tx_bps == 300 * 8
    # The counters do not separate two endpoints that swap ports in one second.
    other = state.light.attachments["gpu2"]
    state.light.attachments["gpu0"], state.light.attachments["gpu2"] = other, new
    await telemetry.tick()
    assert telemetry.rates("gpu0") == EndpointRates()


async def test_a_regroup_has_markers_in_the_series(rack: Rack) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    await rack.desks.plans.apply(plan, wait_s=10)
    series = await rack.desks.live.series(900)
    reasons = [marker.reason for marker in series.markers]
    assert reasons == ["JobStarted", "JobStarted", "RegroupStarted", "RegroupCommitted"]


async def test_a_disconnected_aggregator_leaves_a_gap(rack: Rack) -> None:
    telemetry = rack.parts.telemetry
    rack.aggregators.away = {"as0"}
    await telemetry.tick()
    assert telemetry.rates("gpu0") == EndpointRates()


async def test_every_second_is_published_to_the_readers_of_the_stream(rack: Rack) -> None:
    at = rack.see.light.attachments["gpu0"]
    reader = rack.desks.feed.read(None)
    await rack.parts.telemetry.tick()
    (sample,) = [i.data for i in await reader.batch() if isinstance(i.data, SampleView)]
    assert (at.aggregator, at.port) in {(link.device, link.port) for link in sample.links}


class Many:
    """More aggregators than are read at once; one does not answer."""

    def __init__(self) -> None:
        self.names = [f"as{n}" for n in range(3 * AT_ONCE + 1)]
        self.reads = 0
        self.asked = 0
        self.most = 0

    def connected(self) -> frozenset[str]:
        return frozenset(self.names)

    async def port_counters(self, name: str) -> PortBlock:
        self.asked += 1
        self.most = max(self.most, self.asked)
        await asyncio.sleep(0)
        self.asked -= 1
        if name == "as7":
            raise TimeoutError
        self.reads += 1
        second = float(self.reads // len(self.names) + 1)
        return PortBlock.made({1: PortCounters(int(1000 * second), 0, 0, 0, second)})


async def test_aggregators_are_read_in_slices(rack: Rack) -> None:
    many: Any = Many()
    unused: Any = None
    ticks: list[Telemetry] = []
    telemetry = Telemetry(rack.parts.state, many, unused)
    telemetry.report_to(ticks.append)
    await telemetry.tick()
    assert ticks == [telemetry]
    many.reads = len(many.names)
    await telemetry.tick()
    known = {at.aggregator: rates.rx_bps for at, rates in telemetry.all_ports().items()}
    assert known == {name: 8000.0 for name in many.names if name != "as7"}
    assert many.most == AT_ONCE
