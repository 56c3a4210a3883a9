"""A made-up site whose aggregators are all linked with each other, and its console."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import combinations

from benchmarks.console_service import SyntheticDesk
from benchmarks.console_site import EPOCH, UPLINK_BPS, SyntheticSite
from controller.api.app import create_app
from controller.schema.fabric import (
    AggregatorPortView,
    AggregatorView,
    CircuitView,
    EndpointView,
    NodeView,
    SwitchView,
    UplinkView,
)
from controller.schema.jobs import JobView, RankView
from scheduler.model import Locality, Policy, RankOrder
from tests.web.world import serving

PER_SERVER = 3
FREE_PORTS = 2
"""Fibers of an aggregator beyond its endpoints."""


@dataclass(slots=True)
class MeshSite(SyntheticSite):
    """A full mesh of ``meshed`` aggregators; ``optical`` switches share their fibers evenly.

    One job holds every second endpoint and so lies under all aggregators; the rest is idle.
    """

    meshed: int = 3
    optical: int = 2

    def __post_init__(self) -> None:
        self.endpoints += [self._endpoint(i) for i in range(self.size)]
        self.homes |= {e.name: e.home for e in self.endpoints if e.home}
        self.jobs.append(self._red([e for e in self.endpoints if e.job]))
        self.uplinks += [
            UplinkView(
                a=f"as{a}/{self._uplink_port(a, b)}",
                b=f"as{b}/{self._uplink_port(b, a)}",
                capacity_bps=UPLINK_BPS,
            )
            for a, b in combinations(range(self.meshed), 2)
        ]
        self.circuits += [self._circuit(e) for e in self.endpoints]
        self.aggregators += [self._aggregator_view(i) for i in range(self.meshed)]
        self.switches += [self._switch(f"ocs{i}") for i in range(self.optical)]
        self.nodes += [self._node(s) for s in dict.fromkeys(e.server for e in self.endpoints)]

    @property
    def _per(self) -> int:
        return self.size // self.meshed

    def _uplink_port(self, of: int, to: int) -> int:
        """Return a number after those of the fibers."""
        return self._per + FREE_PORTS + 1 + (to if to < of else to - 1)

    def _fiber(self, side: int, device: int, port: int) -> str:
        return f"ocs{(port - 1) % self.optical}/{side}.{device + 1}.{port}"

    def _endpoint(self, i: int) -> EndpointView:
        home, port = divmod(i, self._per)
        busy = i % 2 == 0
        return EndpointView(
            name=f"gpu{i}",
            server=f"srv{i // PER_SERVER}",
            kind="gpu",
            model="H100",
            memory_bytes=80 * 2**30,
            ip=f"10.0.0.{i + 1}",
            mac=f"02:00:00:00:00:{i:02x}",
            fiber=self._fiber(1, home, port + 1),
            home=f"as{home}",
            port=f"as{home}/{port + 1}",
            state="busy" if busy else "idle",
            job="red" if busy else None,
            rank=i // 2 if busy else None,
            emulated=True,
        )

    def _red(self, members: list[EndpointView]) -> JobView:
        homes = [self.homes[e.name] for e in members]
        return JobView(
            name="red",
            state="running",
            count=len(members),
            project="default",
            locality=Locality.ANY,
            policy=Policy.PAUSE,
            rank_order=RankOrder.AGGREGATOR,
            image="trainer",
            command=[],
            env={},
            endpoints=[e.name for e in members],
            homes=list(homes),
            ranks=[
                RankView(rank=i, endpoint=e.name, home=e.home, server=e.server, state="running")
                for i, e in enumerate(members)
            ],
            spread={home: homes.count(home) for home in dict.fromkeys(homes)},
            span=self.meshed,
            excess_span=self.meshed - 1,
            ring_crossings=self.meshed,
            epoch=EPOCH,
            submitted_at=self.now - 3700,
            started_at=self.now - 3600,
            exit_codes=[],
            conditions=[],
        )

    def _circuit(self, e: EndpointView) -> CircuitView:
        assert e.home is not None and e.port is not None
        port = int(e.port.rpartition("/")[2])
        switch, _, a = e.fiber.partition("/")
        return CircuitView(
            switch=switch,
            a=a,
            b=self._fiber(2, int(e.home[2:]), port).partition("/")[2],
            state="tuned",
            name=f"ll-{e.name}",
            owner="lightloom",
            endpoint=e.name,
            aggregator=e.home,
            aggregator_port=port,
        )

    def _aggregator_view(self, number: int) -> AggregatorView:
        name = f"as{number}"
        here = {e.port: e.name for e in self.endpoints if e.home == name}
        ports = [
            AggregatorPortView(
                port=p,
                kind="fiber",
                far=self._fiber(2, number, p),
                endpoint=here.get(f"{name}/{p}"),
                up=f"{name}/{p}" in here,
            )
            for p in range(1, self._per + FREE_PORTS + 1)
        ]
        ends = [(u.a, u.b) for u in self.uplinks] + [(u.b, u.a) for u in self.uplinks]
        ports += [
            AggregatorPortView(port=int(one.rpartition("/")[2]), kind="uplink", far=other, up=True)
            for one, other in sorted(ends)
            if one.startswith(f"{name}/")
        ]
        return AggregatorView(
            name=name,
            dpid=f"{number:#018x}",
            connected=True,
            size=self._per + FREE_PORTS,
            used=len(here),
            free=FREE_PORTS,
            endpoints=list(here.values()),
            jobs=["red"],
            ports=ports,
        )

    def _switch(self, name: str) -> SwitchView:
        mine = sum(c.switch == name for c in self.circuits)
        return SwitchView(
            name=name,
            url="calient+tl1://lightloom@192.0.2.1:3082",
            connected=True,
            ports=2 * mine,
            circuits=mine,
            foreign_circuits=0,
        )

    def _node(self, name: str) -> NodeView:
        mine = [e for e in self.endpoints if e.server == name]
        return NodeView(
            name=name,
            agent="192.0.2.100:7701",
            reachable=True,
            endpoints=[e.name for e in mine],
            jobs=["red"],
            containers=sum(e.job is not None for e in mine),
        )


@asynccontextmanager
async def mesh_console(size: int = 12, meshed: int = 3, optical: int = 2) -> AsyncIterator[str]:
    """Serve the console of a meshed site, with a sample every second; yields its URL."""
    service = SyntheticDesk(MeshSite(size, time.time(), meshed=meshed, optical=optical))
    publishing = asyncio.create_task(service.run())
    try:
        async with serving(create_app(service.desks)) as url:
            yield url
    finally:
        publishing.cancel()
