from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller.devices.aggregators import AttachPoint
from controller.devices.counters import PortBlock, PortCounters
from controller.schema.plans import PlanRequest
from controller.telemetry.throughput import AT_ONCE, Rates, Telemetry
from tests.unit.controller.fakes import Rack
from tests.unit.controller.service.test_service import scattered, submit


@pytest.fixture(autouse=True)
def only_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller takes a reading a second itself; one between two of ours would be the last."""

    async def none(_: Telemetry) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Telemetry, "run_counters", none)


async def test_rates_use_the_switchs_own_clock(rack: Rack) -> None:
    await submit(rack, "red", 1, endpoints=["gpu0"])
    await rack.state("red", "running")
    telemetry = rack.service._telemetry
    at = rack.service._state.attachments["gpu0"]
    rack.aggregators.counters[at] = 1000
    await telemetry.tick()
    rack.aggregators.counters[at] = 2000
    await telemetry.tick()
    # The port received 1000 bytes and sent 2000 in one second of the switch's clock.
    assert telemetry.port_rates(at) == Rates(rx_bps=8000, tx_bps=16000)
    assert telemetry.rates("gpu0") == Rates(rx_bps=16000, tx_bps=8000)
    job = await rack.service.queries.job("red")
    assert (job.rx_bps, job.tx_bps) == (16000, 8000)
    series = await rack.service.queries.series(60)
    (line,) = series.containers
    assert (line.job, line.endpoint, line.rx_bps[-1]) == ("red", "gpu0", 16000)
    assert len(line.rx_bps) == len(series.times)


async def test_counters_that_fall_are_a_reset_and_no_rate(rack: Rack) -> None:
    telemetry = rack.service._telemetry
    at = rack.service._state.attachments["gpu0"]
    rack.aggregators.counters[at] = 5000
    await telemetry.tick()
    rack.aggregators.counters[at] = 10
    await telemetry.tick()
    assert telemetry.rates("gpu0") == Rates()


async def test_the_second_of_a_move_adds_both_ports(rack: Rack) -> None:
    telemetry, state = rack.service._telemetry, rack.service._state
    old, new = state.attachments["gpu0"], AttachPoint("as1", 4)
    await telemetry.tick()
    rack.aggregators.counters[old] = 100
    rack.aggregators.counters[new] = 200
    state.attachments["gpu0"] = new
    await telemetry.tick()
    assert telemetry.rates("gpu0").tx_bps == 300 * 8
    # Two that swap ports in one second cannot be told apart: nothing is better than wrong.
    other = state.attachments["gpu2"]
    state.attachments["gpu0"], state.attachments["gpu2"] = other, new
    await telemetry.tick()
    assert telemetry.rates("gpu0") == Rates()


async def test_a_regroup_is_marked(rack: Rack) -> None:
    await scattered(rack)
    plan = await rack.service.commands.make_plan(PlanRequest())
    await rack.service.commands.apply(plan, wait_s=10)
    series = await rack.service.queries.series(900)
    reasons = [marker.reason for marker in series.markers]
    assert reasons == ["JobStarted", "JobStarted", "RegroupStarted", "RegroupCommitted"]


async def test_aggregator_that_is_away_leaves_a_gap(rack: Rack) -> None:
    telemetry = rack.service._telemetry
    rack.aggregators.away = {"as0"}
    await telemetry.tick()
    assert telemetry.rates("gpu0") == Rates()


class Many:
    """More aggregators than are asked at once; one never answers."""

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


async def test_all_are_asked_a_slice_at_a_time(rack: Rack) -> None:
    many: Any = Many()
    nobody: Any = None
    telemetry = Telemetry(rack.service._state, many, nobody)
    await telemetry.tick()
    many.reads = len(many.names)
    await telemetry.tick()
    known = {at.aggregator: rates.rx_bps for at, rates in telemetry.all_ports().items()}
    assert known == {name: 8000.0 for name in many.names if name != "as7"}
    assert many.most == AT_ONCE
