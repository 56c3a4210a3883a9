"""``/metrics``: the site's state in the text format of Prometheus, with base units."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import cast, get_args

from fastapi import APIRouter, Request, Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from controller.api.common import READ_S, DesksOf
from controller.api.deadlines import within
from controller.api.operation import operation
from controller.api.problems import responses
from controller.api.routes.metrics.comms import of_collectives
from controller.api.routes.metrics.readings import of_readings
from controller.api.routes.metrics.survival import of_checkpoints, of_recoveries, of_spares
from controller.base.errors import ServiceError
from controller.comms.ledger import Bucket, BucketSums
from controller.schema.checkpoints import CheckpointSumsView, RecoverySumsView
from controller.schema.fabric import (
    AggregatorView,
    EndpointState,
    EndpointView,
    NodeView,
    SwitchView,
)
from controller.schema.insight.usage import UsageSumsView
from controller.schema.jobs import JobView
from controller.schema.live import HealthView, PortPowerView
from controller.service.desks import Desks
from controller.stream.counters import Counters

router = APIRouter(tags=["live"], responses=responses("unavailable"))
Survival = tuple[Mapping[str, CheckpointSumsView], RecoverySumsView]
JOB_STATES = (
    *("pending", "waiting", "starting", "running", "pausing", "paused"),
    *("completed", "failed", "cancelled"),
)


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {
            "description": "Prometheus text format.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    },
)
@operation("metrics:read")
async def get_metrics(request: Request, desks: DesksOf) -> Response:
    """Show metrics for Prometheus; needs a token that sees every project."""
    counters = cast(Counters, request.app.state.counters)
    # Not redacted, also for a viewer: metrics have no messages or addresses of devices.
    moment = await within(READ_S, "metrics", _moment(desks))
    registry = CollectorRegistry()
    registry.register(moment)
    text = await asyncio.to_thread(
        lambda: generate_latest(registry) + generate_latest(counters.registry)
    )
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _moment(desks: Desks) -> SiteMetrics:
    health, jobs = desks.health.health(), await desks.jobs.jobs()
    return SiteMetrics(
        health=health,
        jobs=jobs,
        endpoints=await desks.fabric.endpoints(),
        aggregators=await desks.fabric.aggregators(),
        switches=desks.fabric.switches(),
        nodes=desks.fabric.nodes(),
        power=desks.live.power(),
        usage=desks.usage.totals(),
        collectives=desks.comms.collectives(),
        survived=_survival(desks),
    )


def _survival(desks: Desks) -> Survival | None:
    try:
        return desks.checkpoints.sums(), desks.recoveries.sums()
    except ServiceError:  # a controller that keeps no checkpoints
        return None


class SiteMetrics(Collector):
    """The site at one moment; jobs that ended have no labels."""

    def __init__(
        self,
        *,
        health: HealthView,
        jobs: list[JobView],
        endpoints: list[EndpointView],
        aggregators: list[AggregatorView],
        switches: list[SwitchView],
        nodes: list[NodeView],
        power: list[PortPowerView],
        usage: Mapping[str, UsageSumsView],
        collectives: Mapping[str, Mapping[Bucket, BucketSums]],
        survived: Survival | None,
    ) -> None:
        self._health = health
        self._jobs = jobs
        self._endpoints = endpoints
        self._aggregators = aggregators
        self._switches = switches
        self._nodes = nodes
        self._power = power
        self._usage = usage
        self._collectives = collectives
        self._survived = survived

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        yield from self._controller()
        yield from self._of_jobs()
        yield from self._of_endpoints()
        yield from self._of_devices()
        yield from of_spares(self._jobs)
        if self._survived is not None:
            checkpoints, recoveries = self._survived
            yield from of_checkpoints(checkpoints)
            yield from of_recoveries(recoveries)

    def _controller(self) -> Iterator[Metric]:
        health = self._health
        info = GaugeMetricFamily(
            "lightloom_build_info", "Version and site", labels=("version", "site")
        )
        info.add_metric((health.version, health.site), 1)
        yield info
        yield CounterMetricFamily("lightloom_epoch", "Revision of the intent", value=health.epoch)
        yield GaugeMetricFamily(
            "lightloom_healthy",
            "1 when all devices answer and nothing is out of place",
            value=float(health.status == "ok"),
        )
        yield GaugeMetricFamily(
            "lightloom_start_time_seconds", "When the controller started", value=health.started_at
        )
        up = GaugeMetricFamily(
            "lightloom_device_up", "1 when a device or agent answers", labels=("kind", "name")
        )
        for device in health.devices:
            up.add_metric((device.kind, device.name), float(device.connected))
        yield up
        yield GaugeMetricFamily(
            "lightloom_store_failing",
            "1 when the last durable write failed",
            value=float(bool(health.store_error)),
        )

    def _of_jobs(self) -> Iterator[Metric]:
        counts = GaugeMetricFamily("lightloom_jobs", "Jobs by state", labels=("state",))
        for state in JOB_STATES:
            counts.add_metric((state,), sum(job.state == state for job in self._jobs))
        yield counts
        running = [job for job in self._jobs if job.state in ("running", "paused", "pausing")]
        waiting = [job for job in self._jobs if job.state == "pending"]
        yield GaugeMetricFamily(
            "lightloom_pending_endpoints",
            "Endpoints that waiting jobs ask for",
            value=sum(job.count for job in waiting),
        )
        excess = GaugeMetricFamily(
            "lightloom_job_excess_span",
            "Aggregators a job touches beyond the least possible",
            labels=("job",),
        )
        rx = GaugeMetricFamily(
            "lightloom_job_receive_bytes_per_second",
            "Throughput of a job's containers",
            labels=("job",),
        )
        tx = GaugeMetricFamily(
            "lightloom_job_transmit_bytes_per_second",
            "Throughput of a job's containers",
            labels=("job",),
        )
        busy = GaugeMetricFamily(
            "lightloom_job_utilization_ratio",
            "Mean busy fraction of its endpoints",
            labels=("job",),
        )
        for job in running:
            label = (job.name,)
            excess.add_metric(label, job.excess_span)
            _known(rx, label, job.rx_bps, 1 / 8)
            _known(tx, label, job.tx_bps, 1 / 8)
            _known(busy, label, job.utilisation)
        yield from (excess, rx, tx, busy, self._of_usage())
        yield from of_collectives(self._collectives)

    def _of_usage(self) -> Metric:
        usage = CounterMetricFamily(
            "lightloom_endpoint_seconds",
            "Endpoints times seconds; weighted counts held times span by least span",
            labels=("project", "kind"),
        )
        for project, sums in self._usage.items():
            for kind in ("held", "frozen", "dark", "weighted"):
                usage.add_metric((project, kind), getattr(sums, f"{kind}_s"))
        return usage

    def _of_endpoints(self) -> Iterator[Metric]:
        counts = GaugeMetricFamily("lightloom_endpoints", "Endpoints by state", labels=("state",))
        for state in get_args(EndpointState):
            counts.add_metric((state,), sum(e.state == state for e in self._endpoints))
        yield counts
        yield from of_readings(self._endpoints, self._nodes, self._switches, self._aggregators)

    def _of_devices(self) -> Iterator[Metric]:
        labels = ("aggregator", "port")
        rx = GaugeMetricFamily(
            "lightloom_port_receive_bytes_per_second", "As the port sees it", labels=labels
        )
        tx = GaugeMetricFamily(
            "lightloom_port_transmit_bytes_per_second", "As the port sees it", labels=labels
        )
        up = GaugeMetricFamily("lightloom_port_up", "1 when the carrier is up", labels=labels)
        for aggregator in self._aggregators:
            for port in aggregator.ports:
                label = (aggregator.name, str(port.port))
                _known(rx, label, port.rx_bps, 1 / 8)
                _known(tx, label, port.tx_bps, 1 / 8)
                _known(up, label, None if port.up is None else float(port.up))
        yield from (rx, tx, up)
        circuits = GaugeMetricFamily(
            "lightloom_circuits", "Circuits on an optical switch", labels=("switch", "owner")
        )
        for switch in self._switches:
            circuits.add_metric((switch.name, "foreign"), switch.foreign_circuits)
            circuits.add_metric(
                (switch.name, "lightloom"), switch.circuits - switch.foreign_circuits
            )
        yield circuits
        light = GaugeMetricFamily(
            "lightloom_optical_power_dbm",
            "Light at a port of an optical switch",
            labels=("switch", "port", "direction"),
        )
        for seen in self._power:
            _known(light, (seen.switch, seen.port, "in"), seen.power_in_dbm)
            _known(light, (seen.switch, seen.port, "out"), seen.power_out_dbm)
        yield light


def _known(
    family: GaugeMetricFamily, labels: tuple[str, ...], value: float | None, factor: float = 1.0
) -> None:
    if value is not None:
        family.add_metric(labels, value * factor)
