"""Figures of GPUs, from NVML's library to the history, the views and the metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pynvml
import pytest
import pytest_asyncio
from prometheus_client.registry import Collector, CollectorRegistry

from container_mgr.hardware import nvml
from container_mgr.ranks.living import Sample
from container_mgr.rpc import messages
from container_mgr.values import RankKey
from controller.api.routes.metrics.gpu import of_gpus
from controller.devices.agents.messages import samples_of
from controller.devices.engine import RankSample
from controller.telemetry.history import GPU_COLUMNS, RingBuffer
from controller.telemetry.throughput import Telemetry
from controller.views.series import series_of
from tests.nvml import mock
from tests.parts.api.fake_service import FakeService
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack

START = 1_800_000_000.0
A = "GPU-aaaa"


@pytest_asyncio.fixture
async def rack(tmp_path: Path) -> AsyncIterator[Rack]:
    """A controller over fakes."""
    rack = Rack(tmp_path)
    await rack.up()
    yield rack
    await rack.down()


@pytest.fixture
def reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nvml.Reading:
    """A reading of a healthy GPU from the mock of the driver's library."""
    path = tmp_path / "gpus"
    mock.look_at(path)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    mock.behave(path, {A: "ok"})
    found = nvml.Device(mock.library(), A).read()
    pynvml._nvmlGetFunctionPointer_cache.clear()
    return found


def sampled(reading: nvml.Reading, time: float) -> RankSample:
    """Encode and decode a reading as the agents do."""
    container: Any = SimpleNamespace(key=RankKey("red", 0, 1), endpoint="gpu0")
    one = Sample(container, reading.utilisation, reading.memory_bytes, reading)
    (found,) = samples_of(messages.telemetry_of(time, [one]), time)
    return found


def telemetry(directory: Path | None, now: list[float]) -> Telemetry:
    """Telemetry of a site of one real and one emulated GPU, with a job on both."""
    job: Any = SimpleNamespace(
        name="red",
        holding=True,
        state="running",
        endpoints=("gpu0", "gpu1"),
        started_at=START,
        finished_at=None,
    )
    cables = [
        SimpleNamespace(name=name, emulated=name != "gpu0", server="s0")
        for name in ("gpu0", "gpu1")
    ]
    state: Any = SimpleNamespace(
        site=SimpleNamespace(endpoints=cables),
        cables={cable.name: cable for cable in cables},
        light=SimpleNamespace(attachments={}),
        jobs={"red": job},
        clock=lambda: now[0],
        events=SimpleNamespace(markers=lambda since: []),
    )
    unused: Any = None
    return Telemetry(state, unused, unused, directory)


async def test_the_series_has_nvmls_figures_also_after_a_restart(
    reading: nvml.Reading, tmp_path: Path
) -> None:
    now = [START]
    one = telemetry(tmp_path, now)
    for second in range(3):
        now[0] = START + second + 0.5
        one._samples["red", 0] = sampled(reading, now[0])
        one.take({})
    await one.flush()
    again = telemetry(tmp_path, now)
    real, emulated = (
        await series_of(again._state, again.history, 60, again.gpu_history)
    ).containers
    assert real.temperature_c == [61, 61, 61]
    assert real.power_w == [pytest.approx(350.5)] * 3
    assert real.memory_bytes == [3 << 30] * 3
    assert real.utilisation == [pytest.approx(0.42)] * 3
    assert (emulated.temperature_c, emulated.power_w, emulated.memory_bytes) == (None, None, None)


async def test_a_sample_that_is_too_old_is_a_gap(reading: nvml.Reading) -> None:
    now = [START + 0.5]
    one = telemetry(None, now)
    one._samples["red", 0] = sampled(reading, now[0])
    one.take({})
    now[0] += 10
    one.take({})
    assert (await series_of(one._state, one.history, 60, one.gpu_history)).containers[
        0
    ].temperature_c == [61, None]


async def test_gpu_figures_start_with_their_own_history() -> None:
    now = [START + 0.5]
    one = telemetry(None, now)
    one.history.append(START - 5, np.ones((2, 3), dtype=np.float32))  # before the history of GPUs
    one.gpu_history = RingBuffer(None, ["gpu0"], stem="gpu", columns=GPU_COLUMNS)
    one.gpu_history.append(now[0], np.full((1, 3), 7, dtype=np.float32))
    one.history.append(now[0], np.ones((2, 3), dtype=np.float32))
    line = (await series_of(one._state, one.history, 60, one.gpu_history)).containers[0]
    assert line.temperature_c == [None, 7]


async def test_a_site_without_gpus_has_no_gpu_history(rack: Rack) -> None:
    assert rack.parts.telemetry.gpu_history is None


async def test_views_show_the_gpus_figures_and_their_source(
    rack: Rack, reading: nvml.Reading
) -> None:
    await submit(rack, "red", 1, endpoints=["gpu0"])
    await rack.state("red", "running")
    state = rack.parts.state
    rack.parts.telemetry._samples["red", 0] = sampled(reading, state.clock() + 3600)  # always fresh
    (container,) = await rack.service.queries.containers()
    assert container.gpu is not None
    assert (container.source, container.gpu.temperature_c) == ("nvml", 61)
    endpoint = (await rack.service.queries.endpoints())[0]
    assert endpoint.gpu == container.gpu
    assert (endpoint.source, endpoint.memory_used_bytes) == ("nvml", 3 << 30)
    view = await rack.service.queries.top()
    assert [row.temperature_c for row in (*view.jobs, *view.containers)] == [61, 61]
    assert view.jobs[0].power_w == pytest.approx(350.5)
    idle = (await rack.service.queries.endpoints())[1]
    assert (idle.gpu, idle.source, idle.memory_used_bytes) == (None, None, None)


async def test_a_lost_gpu_is_shown_at_its_endpoint(rack: Rack) -> None:
    rack.parts.state.light.unfit = {"gpu2": "NVML hangs on this GPU"}
    found = {e.name: e.unfit for e in await rack.service.queries.endpoints()}
    assert found["gpu2"] == "NVML hangs on this GPU"
    assert not found["gpu1"]


async def test_metrics_have_base_units_and_omit_unknown_values() -> None:
    endpoints = await FakeService().queries.endpoints()

    class Now(Collector):
        def collect(self) -> Any:
            return of_gpus(endpoints)

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
