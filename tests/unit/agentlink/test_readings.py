"""Readings on the wire, also of agents and controllers that are older than the catalogue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from agentlink import readings
from agentlink.ranks import RankKey
from container_mgr.ranks.living import LiveSample
from container_mgr.rpc.messages import telemetry_of
from controller.devices.agents.messages import samples_of, server_of
from protos import agent_pb2 as pb
from readings.catalogue import CATALOGUE
from readings.reading import Object, Values

OF_RANK: Values = {"utilisation": 0.42, "memory_bytes": 3 << 30}
OF_GPU: Values = {
    "memory_total_bytes": 80 << 30,
    "temperature_c": 61.0,
    "power_w": 350.5,
    "sm_clock_hz": 1_980_000_000,
    "memory_clock_hz": 2_619_000_000,
    "pcie_rx_bps": 16_384_000,
    "pcie_tx_bps": 8_192_000,
    "pcie_replays": 5,
    "nvlinks_up": 3,
    "ecc_corrected": 9,
    "ecc_uncorrected": 1,
    "xid": 13,
    "throttle_reasons": ("sw_thermal",),
}
CONTAINER: Any = SimpleNamespace(key=RankKey("red", 0, 1), endpoint="gpu0")


def batch(values: Values, *, real: bool = True) -> pb.TelemetryBatch:
    return telemetry_of(9.0, [LiveSample(CONTAINER, values, real)], {"load": 0.5})


def test_what_an_agent_measures_reaches_the_controller() -> None:
    (found,) = samples_of(batch({**OF_RANK, **OF_GPU}), 9.0)
    assert (found.source, found.real, found.values) == ("nvml", True, {**OF_RANK, **OF_GPU})
    (emulated,) = samples_of(batch(OF_RANK, real=False), 9.0)
    assert (emulated.source, emulated.real, emulated.values) == ("emulated", False, OF_RANK)
    assert server_of("s0", batch({})).values == {"load": 0.5}


def test_an_older_controller_reads_an_agents_figures_where_it_knows_them() -> None:
    (sample,) = batch({**OF_RANK, **OF_GPU}).samples
    older = {name: getattr(sample, name) for name in OF_RANK}
    older |= {name: getattr(sample.gpu, name) for name in OF_GPU}
    assert older == {**OF_RANK, **OF_GPU, "throttle_reasons": ["sw_thermal"]}
    assert {field.name for field in sample.gpu.DESCRIPTOR.fields} == OF_GPU.keys()


def test_an_older_agents_figures_are_read() -> None:
    message = batch({**OF_RANK, **OF_GPU})
    message.samples[0].ClearField("readings")
    message.ClearField("readings")
    (found,) = samples_of(message, 9.0)
    assert found.values == {**OF_RANK, **OF_GPU}
    assert server_of("s0", message).values == {}
    plain = pb.Sample(job="red", endpoint="gpu0", source="nvml", gpu=pb.Gpu(power_w=3.5))
    (found,) = samples_of(pb.TelemetryBatch(time=9.0, samples=[plain]), 9.0)
    assert found.values == {"power_w": 3.5, "throttle_reasons": ()}


def test_what_the_catalogue_does_not_have_is_ignored() -> None:
    hostile = pb.Readings(values=dict.fromkeys(range(200), 1.0))
    found = readings.read(hostile, Object.SERVER)
    assert found == {"load": 1.0, "memory_available_bytes": 1}
    (sample,) = batch(OF_RANK, real=False).samples
    sample.readings.MergeFrom(hostile)
    (seen,) = samples_of(pb.TelemetryBatch(time=9.0, samples=[sample]), 9.0)
    assert seen.values.keys() == OF_RANK.keys()  # it has no GPU
    many = pb.Readings(values=dict.fromkeys(range(100_000), 1.0))
    assert readings.read(many, *Object).keys() <= {reading.name for reading in CATALOGUE}
