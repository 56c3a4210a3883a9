"""Metrics of the endpoints' GPUs. A figure that a GPU does not report has no sample, not a zero."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.schema.fabric import EndpointView

_GAUGES = (
    ("lightloom_gpu_temperature_celsius", "Temperature of the GPU", "temperature_c"),
    ("lightloom_gpu_power_watts", "What the GPU draws", "power_w"),
    ("lightloom_gpu_memory_size_bytes", "Memory the GPU has", "memory_total_bytes"),
    ("lightloom_gpu_sm_clock_hertz", "Clock of the streaming multiprocessors", "sm_clock_hz"),
)
_ECC = (("corrected", "ecc_corrected"), ("uncorrected", "ecc_uncorrected"))


def of_gpus(endpoints: Sequence[EndpointView]) -> Iterator[Metric]:
    """Yield the families of the GPUs at this moment; only GPUs with a job are measured."""
    by_source = ("endpoint", "source")
    busy = GaugeMetricFamily(
        "lightloom_gpu_utilization_ratio", "Busy fraction of an endpoint", labels=by_source
    )
    used = GaugeMetricFamily(
        "lightloom_gpu_memory_used_bytes", "Memory in use on an endpoint", labels=by_source
    )
    fit = GaugeMetricFamily(
        "lightloom_endpoint_fit",
        "0 when its agent finds that no job should get it: its GPU is lost, hangs, has an Xid",
        labels=("endpoint",),
    )
    throttled = GaugeMetricFamily(
        "lightloom_gpu_throttled", "1 when the clocks are held down", labels=("endpoint",)
    )
    errors = CounterMetricFamily(
        "lightloom_gpu_ecc_errors",
        "Memory errors since the driver was loaded",
        labels=("endpoint", "kind"),
    )
    gauges = [
        (GaugeMetricFamily(name, words, labels=("endpoint",)), field)
        for name, words, field in _GAUGES
    ]
    for endpoint in endpoints:
        fit.add_metric((endpoint.name,), float(not endpoint.unfit))
        source = endpoint.source or ("emulated" if endpoint.emulated else "nvml")
        if endpoint.utilisation is not None:
            busy.add_metric((endpoint.name, source), endpoint.utilisation)
        if endpoint.memory_used_bytes is not None:
            used.add_metric((endpoint.name, source), endpoint.memory_used_bytes)
        if endpoint.gpu is None:
            continue
        throttled.add_metric((endpoint.name,), float(bool(endpoint.gpu.throttle_reasons)))
        for family, field in gauges:
            if (value := getattr(endpoint.gpu, field)) is not None:
                family.add_metric((endpoint.name,), value)
        for kind, field in _ECC:
            if (count := getattr(endpoint.gpu, field)) is not None:
                errors.add_metric((endpoint.name, kind), count)
    yield from (busy, used, fit, throttled, errors)
    yield from (family for family, _ in gauges)
