"""Serves the console from a synthetic site, with one sample per second and no controller."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import uvicorn

from benchmarks.console_site import ACCESS_BPS, EPOCH, UPLINK_BPS, SyntheticSite
from controller.api.app import create_app
from controller.base.errors import ServiceError
from controller.people.authz import Owned
from controller.schema.fabric import (
    AggregatorView,
    CircuitView,
    EndpointView,
    EventView,
    NodeView,
    OpticsView,
    SiteView,
    SwitchView,
)
from controller.schema.jobs import ContainerView, JobView
from controller.schema.live import HealthView, PortPowerView, SeriesView, TopView
from controller.schema.plans import QuarantineView
from controller.schema.stream import (
    ContainerSampleView,
    JobSampleView,
    LinkSampleView,
    SampleView,
)
from controller.service.desks import Desks
from controller.stream.feed import Feed


class SyntheticDesk:
    """What the console reads, over a synthetic site."""

    def __init__(self, site: SyntheticSite) -> None:
        self._site = site
        self._feed = Feed()
        self._draw = random.Random(site.seed)

    @property
    def desks(self) -> Desks:
        """This one in place of all that the console asks."""
        places = ("jobs", "fabric", "optics", "live", "health", "quarantine")
        asked = SimpleNamespace(epoch=EPOCH, feed=self._feed, **dict.fromkeys(places, self))
        return cast(Desks, asked)

    async def run(self) -> None:
        """Publish a sample every second."""
        while True:
            self._feed.publish("sample", self.sample())
            await asyncio.sleep(1.0)

    def sample(self) -> SampleView:
        """Return one second of samples of all running jobs."""
        containers = list(self._containers())
        by_job: dict[str, list[ContainerSampleView]] = {}
        for row in containers:
            by_job.setdefault(row.job, []).append(row)
        jobs = [
            JobSampleView(
                name=name,
                rx_bps=sum(row.rx_bps or 0 for row in rows),
                tx_bps=sum(row.tx_bps or 0 for row in rows),
                utilisation=sum(row.utilisation or 0 for row in rows) / len(rows),
            )
            for name, rows in by_job.items()
        ]
        return SampleView(
            time=time.time(), jobs=jobs, containers=containers, links=list(self._links(by_job))
        )

    def _containers(self) -> Iterator[ContainerSampleView]:
        for job in self._site.jobs:
            for rank, endpoint in enumerate(job.endpoints):
                rate = self._site.rate(job, self._draw)
                yield ContainerSampleView(
                    job=job.name,
                    rank=rank,
                    endpoint=endpoint,
                    rx_bps=rate,
                    tx_bps=rate,
                    utilisation=rate / ACCESS_BPS,
                    source="emulated",
                )

    def _links(self, by_job: dict[str, list[ContainerSampleView]]) -> Iterator[LinkSampleView]:
        """Yield uplinks with the traffic of spread jobs, up to their capacity."""
        crossing: dict[str, float] = {}
        for job in self._site.jobs:
            if job.excess_span:
                for row in by_job.get(job.name, ()):
                    home = self._site.homes[row.endpoint]
                    crossing[home] = crossing.get(home, 0.0) + (row.rx_bps or 0.0)
        for uplink in self._site.uplinks:
            device, _, port = uplink.a.partition("/")
            rate = min(UPLINK_BPS, crossing.get(device, 0.0) / 2)
            yield LinkSampleView(device=device, port=int(port), rx_bps=rate, tx_bps=rate)

    def health(self) -> HealthView:
        """Return that everything is healthy and synthetic."""
        return HealthView(
            status="ok",
            version="synthetic",
            site=f"synthetic-{self._site.size}",
            epoch=EPOCH,
            started_at=self._site.now,
            devices=[],
            emulated=["site"],
        )

    async def site(self) -> SiteView:
        """Return the cabled site."""
        return SiteView(
            name=f"synthetic-{self._site.size}",
            subnet="10.0.0.0/8",
            servers=[node.name for node in self._site.nodes],
            endpoints=self._site.endpoints,
            aggregators=self._site.aggregators,
            switches=self._site.switches,
            uplinks=self._site.uplinks,
            access_bps=ACCESS_BPS,
            inter_aggregator_bps=UPLINK_BPS,
        )

    def owners(self) -> dict[str, Owned]:
        """Return the owner of every job."""
        return {
            job.name: Owned(job.name, job.project, tuple(job.endpoints), holding=True)
            for job in self._site.jobs
        }

    async def jobs(self, names: Sequence[str] | None = None) -> list[JobView]:
        """Return all jobs, or the jobs in ``names``."""
        wanted = None if names is None else frozenset(names)
        return [job for job in self._site.jobs if wanted is None or job.name in wanted]

    def job(self, name: str) -> JobView:
        """Return one job."""
        for job in self._site.jobs:
            if job.name == name:
                return job
        raise ServiceError("not_found", f"unknown job {name}", object=f"job/{name}")

    def endpoint_names(self) -> Sequence[str]:
        """Return the endpoints' names."""
        return [view.name for view in self._site.endpoints]

    async def endpoints(self, names: Sequence[str] | None = None) -> list[EndpointView]:
        """Return all endpoints, or the endpoints in ``names``."""
        wanted = None if names is None else frozenset(names)
        return [e for e in self._site.endpoints if wanted is None or e.name in wanted]

    async def aggregators(self) -> list[AggregatorView]:
        """Return every aggregator."""
        return self._site.aggregators

    def switches(self) -> list[SwitchView]:
        """Return every switch."""
        return self._site.switches

    def power(self) -> list[PortPowerView]:
        """Return no power readings: there is no switch."""
        return []

    async def read(self, switch: str) -> OpticsView:
        """Return no ports: there is no switch."""
        return OpticsView(switch=switch, time=time.time(), ports=[], alarms=[])

    def circuits(self) -> list[CircuitView]:
        """Return every circuit."""
        return self._site.circuits

    def nodes(self) -> list[NodeView]:
        """Return every server."""
        return self._site.nodes

    async def containers(self) -> list[ContainerView]:
        """Return no containers: there is no agent."""
        return []

    def views(self) -> list[QuarantineView]:
        """Return nothing."""
        return []

    def events(self, since: int, limit: int) -> list[EventView]:
        """Return no events."""
        return []

    async def top(self) -> TopView:
        """Refuse: this site provides its figures only through the stream."""
        raise ServiceError("unavailable", "a synthetic site has only a stream", object="top")

    async def series(self, since_s: float, jobs: Collection[str] | None = None) -> SeriesView:
        """Return no history."""
        return SeriesView(times=[], containers=[], markers=[])


@asynccontextmanager
async def synthetic_console(size: int) -> AsyncIterator[str]:
    """Serve the console of a synthetic site on loopback; yields its URL."""
    service = SyntheticDesk(SyntheticSite(size, time.time()))
    bound = socket.create_server(("127.0.0.1", 0))
    app = create_app(service.desks)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", lifespan="off", access_log=False)
    )
    publishing = asyncio.create_task(service.run())
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        publishing.cancel()
        server.should_exit = server.force_exit = True
        await serving
        bound.close()
