"""Figures of GPUs, from NVML's library to the history, the views and the metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pynvml
import pytest
import pytest_asyncio
from prometheus_client.registry import Collector, CollectorRegistry

from container_mgr.hardware import nvml
from controller.api.routes.metrics.readings import of_readings
from controller.devices.engine import RankSample
from controller.schema.jobs import GpuFiguresView
from controller.telemetry.history import GPU_COLUMNS, RingBuffer
from tests.nvml import mock
from tests.parts.controller.gpus import START, sampled, site
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack

A = "GPU-aaaa"


@pytest_asyncio.fixture
async def rack(tmp_path: Path) -> AsyncIterator[Rack]:
    """A controller over fakes."""
    rack = Rack(tmp_path)
    await rack.up()
    yield rack
    await rack.down()


@pytest.fixture
def reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nvml.GpuReadings:
    """A reading of a healthy GPU from the mock of the driver's library."""
    path = tmp_path / "gpus"
    mock.look_at(path)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    mock.behave(path, {A: "ok"})
    found = nvml.NvmlGpu(mock.library(), A).read()
    pynvml._nvmlGetFunctionPointer_cache.clear()
    return found


async def test_the_series_has_nvmls_figures_also_after_a_restart(
    reading: nvml.GpuReadings, tmp_path: Path
) -> None:
    now = [START]
    one = site(tmp_path, now)
    for second in range(3):
        now[0] = START + second + 0.5
        await one.tell(sampled(reading, now[0]))
        one.telemetry.record({})
    await one.telemetry.flush()
    real, emulated = (await site(tmp_path, now).series()).containers
    assert real.temperature_c == [61, 61, 61]
    assert real.power_w == [pytest.approx(350.5)] * 3
    assert real.memory_bytes == [3 << 30] * 3
    assert real.utilisation == [pytest.approx(0.42)] * 3
    assert (emulated.temperature_c, emulated.power_w, emulated.memory_bytes) == (None, None, None)


async def test_a_sample_that_is_too_old_is_a_gap(reading: nvml.GpuReadings) -> None:
    now = [START + 0.5]
    one = site(None, now)
    await one.tell(sampled(reading, now[0]))
    one.telemetry.record({})
    now[0] += 10
    one.telemetry.record({})
    assert (await one.series()).containers[0].temperature_c == [61, None]


async def test_gpu_figures_start_with_their_own_history() -> None:
    now = [START + 0.5]
    shown = site(None, now)
    one = shown.telemetry
    one.history.append(START - 5, np.ones((2, 3), dtype=np.float32))  # before the history of GPUs
    one.gpu_history = RingBuffer(None, ["gpu0"], stem="gpu", columns=GPU_COLUMNS)
    one.gpu_history.append(now[0], np.full((1, 3), 7, dtype=np.float32))
    one.history.append(now[0], np.ones((2, 3), dtype=np.float32))
    line = (await shown.series()).containers[0]
    assert line.temperature_c == [None, 7]


async def test_a_site_without_gpus_has_no_gpu_history(rack: Rack) -> None:
    assert rack.parts.telemetry.gpu_history is None


async def test_views_show_the_gpus_figures_and_their_source(
    rack: Rack, reading: nvml.GpuReadings
) -> None:
    await submit(rack, "red", 1, endpoints=["gpu0"])
    await rack.state("red", "running")
    fresh = sampled(reading, rack.see.now() + 3600)  # for an hour

    async def told() -> AsyncIterator[RankSample]:
        yield fresh

    rack.engine.telemetry = told  # type: ignore[method-assign]
    await rack.until(lambda: rack.parts.telemetry.sample("red", 0) == fresh)
    (container,) = await rack.desks.jobs.containers()
    assert container.gpu is not None
    assert (container.source, container.gpu.temperature_c) == ("nvml", 61)
    endpoint = (await rack.desks.fabric.endpoints())[0]
    assert endpoint.gpu == container.gpu
    assert (endpoint.source, endpoint.memory_used_bytes) == ("nvml", 3 << 30)
    view = await rack.desks.jobs.top()
    assert [row.temperature_c for row in (*view.jobs, *view.containers)] == [61, 61]
    assert view.jobs[0].power_w == pytest.approx(350.5)
    idle = (await rack.desks.fabric.endpoints())[1]
    assert (idle.gpu, idle.source, idle.memory_used_bytes) == (None, None, None)


async def test_a_lost_gpu_is_shown_at_its_endpoint(rack: Rack) -> None:
    rack.parts.state.light.unfit = {"gpu2": "NVML hangs on this GPU"}
    found = {e.name: e.unfit for e in await rack.desks.fabric.endpoints()}
    assert found["gpu2"] == "NVML hangs on this GPU"
    assert not found["gpu1"]


HOT = GpuFiguresView(
    memory_total_bytes=80 * 2**30,
    temperature_c=61.0,
    power_w=350.5,
    sm_clock_hz=1_980_000_000,
    ecc_uncorrected=1,
    throttle_reasons=["sw_thermal"],
)


async def test_metrics_have_base_units_and_omit_unknown_values(rack: Rack) -> None:
    endpoints = await rack.desks.fabric.endpoints()
    told = {"source": "nvml", "memory_used_bytes": 3 * 2**30, "gpu": HOT}
    endpoints[0] = endpoints[0].model_copy(update=told)
    endpoints[5] = endpoints[5].model_copy(update={"unfit": "the GPU is lost"})

    class Now(Collector):
        def collect(self) -> Any:
            return of_readings(endpoints, [], [], [])

    registry = CollectorRegistry()
    registry.register(Now())
    one = {"endpoint": "gpu0"}
    value = registry.get_sample_value
    assert value("lightloom_gpu_temperature_celsius", one) == 61
    assert value("lightloom_gpu_power_watts", one) == 350.5
    assert value("lightloom_gpu_memory_used_bytes", {**one, "source": "nvml"}) == 3 << 30
    assert value("lightloom_gpu_memory_size_bytes", one) == 80 << 30
    assert value("lightloom_gpu_sm_clock_hertz", one) == 1.98e9
    assert value("lightloom_gpu_ecc_errors_total", {**one, "kind": "uncorrected"}) == 1
    assert value("lightloom_gpu_throttled", one) == 1
    assert value("lightloom_endpoint_fit", one) == 1
    assert value("lightloom_endpoint_fit", {"endpoint": "gpu5"}) == 0
    assert value("lightloom_gpu_temperature_celsius", {"endpoint": "gpu1"}) is None
