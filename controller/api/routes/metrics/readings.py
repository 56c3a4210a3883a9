"""Metrics of the catalogue's readings. One that nothing reports has no sample, not a zero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.schema.fabric import AggregatorView, EndpointView, NodeView, SwitchView
from readings.catalogue import of
from readings.reading import Object, Unit

_LABELS = {
    Object.RANK: ("endpoint", "source"),
    Object.GPU: ("endpoint",),
    Object.SERVER: ("server",),
    Object.SWITCH: ("switch",),
    Object.AGGREGATOR: ("aggregator",),
    Object.PORT: ("aggregator", "port"),
}


class _Families:
    """A family for each metric of the catalogue."""

    def __init__(self) -> None:
        self.of: dict[str, Any] = {}
        for reading in of(*Object):
            if not reading.metric or reading.metric in self.of:
                continue
            labels = (*_LABELS[reading.of], *(label for label, _ in reading.labels))
            kind = CounterMetricFamily if reading.counter else GaugeMetricFamily
            self.of[reading.metric] = kind(reading.metric, reading.help, labels=labels)

    def add(self, kind: Object, labels: tuple[str, ...], values: Mapping[str, Any] | None) -> None:
        """Add the readings of one object."""
        known = values or {}
        for reading in of(kind):
            if reading.metric and (value := known.get(reading.name)) is not None:
                figure = float(bool(value)) if reading.unit is Unit.WORDS else value
                more = (word for _, word in reading.labels)
                self.of[reading.metric].add_metric((*labels, *more), figure)


def of_readings(
    endpoints: Sequence[EndpointView],
    servers: Sequence[NodeView],
    switches: Sequence[SwitchView],
    aggregators: Sequence[AggregatorView],
) -> Iterator[Metric]:
    """Yield the families at this moment; only GPUs with a job are measured."""
    families = _Families()
    fit = GaugeMetricFamily(
        "lightloom_endpoint_fit",
        "0 when its agent finds that no job should get it: its GPU is lost, hangs, has an Xid",
        labels=("endpoint",),
    )
    for endpoint in endpoints:
        fit.add_metric((endpoint.name,), float(not endpoint.unfit))
        source = endpoint.source or ("emulated" if endpoint.emulated else "nvml")
        of_rank = {
            "utilisation": endpoint.utilisation,
            "memory_bytes": endpoint.memory_used_bytes,
        }
        families.add(Object.RANK, (endpoint.name, source), of_rank)
        if endpoint.gpu is not None:
            families.add(Object.GPU, (endpoint.name,), vars(endpoint.gpu))
    for server in servers:
        families.add(Object.SERVER, (server.name,), server.readings)
    for switch in switches:
        families.add(Object.SWITCH, (switch.name,), switch.readings)
    for aggregator in aggregators:
        families.add(Object.AGGREGATOR, (aggregator.name,), aggregator.readings)
        for port in aggregator.ports:
            families.add(Object.PORT, (aggregator.name, str(port.port)), port.readings)
    yield fit
    yield from families.of.values()
