"""The document of one second: the throughput of jobs, containers and links."""

from __future__ import annotations

from typing import Any

from controller.schema.stream import (
    ContainerSampleView,
    JobSampleView,
    LinkSampleView,
    SampleView,
)
from controller.state.state import State
from controller.telemetry.rates import mean, total
from controller.telemetry.throughput import Telemetry


def sample_view(state: State, telemetry: Telemetry) -> SampleView:
    """Return the last second of all jobs that hold endpoints, and of all links."""
    containers: list[ContainerSampleView] = []
    jobs: list[JobSampleView] = []
    for job in state.jobs.values():
        if not job.holding:
            continue
        of_job = [
            _container(telemetry, job.name, rank, endpoint)
            for rank, endpoint in enumerate(job.endpoints)
        ]
        containers += of_job
        jobs.append(
            JobSampleView(
                name=job.name,
                rx_bps=total([c.rx_bps for c in of_job]),
                tx_bps=total([c.tx_bps for c in of_job]),
                utilisation=mean([c.utilisation for c in of_job]),
            )
        )
    links = [
        LinkSampleView(device=at.aggregator, port=at.port, rx_bps=r.rx_bps, tx_bps=r.tx_bps)
        for at, r in telemetry.all_ports().items()
    ]
    return SampleView(time=state.clock(), jobs=jobs, containers=containers, links=links)


def _container(telemetry: Telemetry, job: str, rank: int, endpoint: str) -> ContainerSampleView:
    rates = telemetry.rates(endpoint)
    sample = telemetry.sample(job, rank)
    values: Any = sample.values if sample else {}
    return ContainerSampleView(
        job=job,
        rank=rank,
        endpoint=endpoint,
        rx_bps=rates.rx_bps,
        tx_bps=rates.tx_bps,
        utilisation=values.get("utilisation"),
        source=sample.source if sample else None,
    )
