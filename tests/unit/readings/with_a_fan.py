"""What one edit of the catalogue gives, from the agent to what people see.

``test_one_edit.py`` runs this file with the plug-in ``fan``; the product has no other edit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from prometheus_client.registry import Collector, CollectorRegistry

from console.cli.show.kinds import find
from container_mgr.hardware.nvml import GpuReadings
from container_mgr.rpc import messages
from controller.api.routes.metrics.readings import of_readings
from controller.devices.agents.messages import server_of
from controller.devices.engine import RankSample, ServerSample
from readings.catalogue import as_module
from readings.reading import Object
from tests.parts.controller.gpus import START, sampled, site
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack

SEEN = GpuReadings({"utilisation": 0.5, "temperature_c": 61.0, "fan_ratio": 0.75})


@pytest_asyncio.fixture
async def rack(tmp_path: Path) -> AsyncIterator[Rack]:
    rack = Rack(tmp_path)
    await rack.up()
    yield rack
    await rack.down()


def wide(kind: str, view: Any) -> dict[str, object]:
    heads, (row,) = find(kind).table([view.model_dump()], wide=True)
    return dict(zip(heads, row, strict=True))


async def metrics(rack: Rack) -> CollectorRegistry:
    fabric = rack.desks.fabric
    endpoints, aggregators = await fabric.endpoints(), await fabric.aggregators()

    class Now(Collector):
        def collect(self) -> Any:
            return of_readings(endpoints, fabric.nodes(), fabric.switches(), aggregators)

    registry = CollectorRegistry()
    registry.register(Now())
    return registry


async def test_a_gpus_fan(rack: Rack) -> None:
    await submit(rack, "red", 1, endpoints=["gpu0"])
    await rack.state("red", "running")
    fresh = sampled(SEEN, rack.see.now() + 3600)

    async def told() -> AsyncIterator[RankSample]:
        yield fresh

    rack.engine.telemetry = told  # type: ignore[method-assign]
    await rack.until(lambda: rack.parts.telemetry.sample("red", 0) == fresh)
    (container,) = await rack.desks.jobs.containers()
    assert container.gpu is not None
    assert container.gpu.model_dump()["fan_ratio"] == 0.75
    assert wide("container", container)["FAN"] == "75 %"
    assert wide("endpoint", (await rack.desks.fabric.endpoints())[0])["FAN"] == "75 %"
    assert (await rack.desks.jobs.top()).jobs[0].model_dump()["fan_ratio"] == 0.75
    seen = (await metrics(rack)).get_sample_value("lightloom_gpu_fan_ratio", {"endpoint": "gpu0"})
    assert seen == 0.75
    assert '"fan_ratio"' in as_module()


async def test_the_history_of_a_fan() -> None:
    now = [START + 0.5]
    one = site(None, now)
    await one.tell(sampled(SEEN, now[0]))
    one.telemetry.record({})
    real, emulated = (await one.series()).containers
    assert (real.model_dump()["fan_ratio"], emulated.model_dump()["fan_ratio"]) == ([0.75], None)


async def test_the_heat_of_every_object(rack: Rack) -> None:
    server = rack.desks.fabric.nodes()[0].name
    batch = messages.telemetry_of(rack.see.now(), [], {"heat_c": 21.0, "load": 0.5})

    async def told() -> AsyncIterator[ServerSample]:
        yield server_of(server, batch)

    rack.engine.telemetry = told  # type: ignore[method-assign]
    latest = rack.parts.telemetry.readings
    await rack.until(lambda: latest.of(Object.SERVER, server))
    latest.report(Object.SWITCH, "ocs0", {"heat_c": 22.0})
    latest.report(Object.AGGREGATOR, "as0", {"heat_c": 23.0})
    latest.report(Object.PORT, "as0/1", {"heat_c": 24.0})
    registry = await metrics(rack)
    for kind, view, heat in (
        ("node", rack.desks.fabric.nodes()[0], "21 °C"),
        ("switch", rack.desks.fabric.switches()[0], "22 °C"),
        ("aggregator", (await rack.desks.fabric.aggregators())[0], "23 °C"),
    ):
        assert wide(kind, view)["HEAT"] == heat
    for kind, labels, heat in (
        ("server", {"server": server}, 21.0),
        ("switch", {"switch": "ocs0"}, 22.0),
        ("aggregator", {"aggregator": "as0"}, 23.0),
        ("port", {"aggregator": "as0", "port": "1"}, 24.0),
    ):
        assert registry.get_sample_value(f"lightloom_{kind}_heat_celsius", labels) == heat
