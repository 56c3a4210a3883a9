"""Generates a synthetic site of any size for the console, which is marked as synthetic.

Servers have 8 GPUs; aggregators have 34 optical ports, 32 of them in use; 16 optical switches each
have every 16th endpoint and every 16th aggregator port; two uplinks connect each aggregator to one
of four transit aggregators. Jobs of 1 to 64 endpoints fill 94 % of the site; every fourth job is
placed without regard to aggregators. Nothing moves and there are no devices: only API documents.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

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

PER_SERVER = 8
PER_AGGREGATOR = 32
PORTS = 34
SWITCHES = 16
TRANSIT = 4
ACCESS_BPS = 100e9
UPLINK_BPS = 800e9
SIZES = (1, 2, 4, 8, 8, 16, 16, 32, 64)
EPOCH = 4096
SPREAD_SHARE = 0.55
"""Throughput of a spread job relative to a local one."""


@dataclass(slots=True)
class SyntheticSite:
    """All documents that the console reads of a site with ``size`` endpoints."""

    size: int
    now: float
    """Current time in seconds since 1970; determines the age of jobs."""
    seed: int = 1
    endpoints: list[EndpointView] = field(default_factory=list)
    aggregators: list[AggregatorView] = field(default_factory=list)
    switches: list[SwitchView] = field(default_factory=list)
    circuits: list[CircuitView] = field(default_factory=list)
    nodes: list[NodeView] = field(default_factory=list)
    jobs: list[JobView] = field(default_factory=list)
    uplinks: list[UplinkView] = field(default_factory=list)
    homes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)
        held = self._place(draw)
        self._fabric(held)

    def rate(self, job: JobView, draw: random.Random) -> float:
        """Return the bytes that a rank of ``job`` receives per second."""
        share = SPREAD_SHARE if job.excess_span else 1.0
        return ACCESS_BPS * 0.8 * share * draw.uniform(0.9, 1.0)

    def _place(self, draw: random.Random) -> dict[str, tuple[str, int]]:
        """Fill the site with jobs; return job and rank by endpoint."""
        names = [f"gpu{i}" for i in range(self.size)]
        self.homes = {name: f"as{i // PER_AGGREGATOR}" for i, name in enumerate(names)}
        free = list(names)
        held: dict[str, tuple[str, int]] = {}
        while len(held) < 0.94 * self.size:
            count = min(draw.choice(SIZES), len(free))
            number = len(self.jobs)
            if number % 4 == 0:
                chosen = sorted(draw.sample(range(len(free)), count))
            else:
                start = draw.randrange(len(free) - count + 1)
                chosen = list(range(start, start + count))
            taken = [free[i] for i in chosen]
            for i in reversed(chosen):
                del free[i]
            job = self._job(f"train-{number:03d}", taken)
            self.jobs.append(job)
            held.update({name: (job.name, rank) for rank, name in enumerate(taken)})
        for i in range(12):
            self.jobs.append(self._waiting(f"queued-{i:02d}", draw.choice((32, 64, 128))))
        return held

    def _job(self, name: str, endpoints: list[str]) -> JobView:
        homes = [self.homes[e] for e in endpoints]
        spread = dict(Counter(homes))
        least = -(-len(endpoints) // PER_AGGREGATOR)
        ranks = [
            RankView(rank=i, endpoint=e, home=self.homes[e], server=_server(e), state="running")
            for i, e in enumerate(endpoints)
        ]
        return _job_view(
            name,
            "running",
            len(endpoints),
            endpoints=endpoints,
            homes=homes,
            ranks=ranks,
            spread=spread,
            span=len(spread),
            excess_span=len(spread) - least,
            ring_crossings=sum(a != b for a, b in zip(homes, homes[1:] + homes[:1], strict=True)),
            started_at=self.now - 3600,
            submitted_at=self.now - 3700,
        )

    def _waiting(self, name: str, count: int) -> JobView:
        reason = f"needs {count} endpoints under as few aggregators as possible"
        since = self.now - 60 * len(self.jobs)
        return _job_view(name, "pending", count, reason=reason, submitted_at=since)

    def _fabric(self, held: dict[str, tuple[str, int]]) -> None:
        under: dict[str, dict[int, str]] = defaultdict(dict)
        for i, (name, home) in enumerate(self.homes.items()):
            port = i % PER_AGGREGATOR + 1
            under[home][port] = name
            job, rank = held.get(name, (None, None))
            fiber = f"ocs{i % SWITCHES}/1.{i // SWITCHES // 32 + 1}.{i // SWITCHES % 32 + 1}"
            self.endpoints.append(
                EndpointView(
                    name=name,
                    server=_server(name),
                    kind="gpu",
                    model="H100",
                    memory_bytes=80 * 2**30,
                    ip=f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}",
                    mac=f"02:00:00:{i >> 16:02x}:{i >> 8 & 255:02x}:{i & 255:02x}",
                    fiber=fiber,
                    home=home,
                    port=f"{home}/{port}",
                    state="busy" if job else "idle",
                    job=job,
                    rank=rank,
                    emulated=True,
                )
            )
            switch, _, a = fiber.partition("/")
            self.circuits.append(
                CircuitView(
                    switch=switch,
                    a=a,
                    b=_far(int(home[2:]), port).partition("/")[2],
                    state="tuned",
                    name=f"ll-{name}",
                    owner="lightloom",
                    endpoint=name,
                    aggregator=home,
                    aggregator_port=port,
                )
            )
        jobs = {name: job for name, (job, _) in held.items()}
        for number in range(-(-self.size // PER_AGGREGATOR)):
            self._aggregator(number, under[f"as{number}"], jobs)
        self.aggregators += [_transit(i) for i in range(TRANSIT)]
        self._devices(jobs)

    def _aggregator(self, number: int, present: dict[int, str], jobs: dict[str, str]) -> None:
        name, core = f"as{number}", f"core{number % TRANSIT}"
        up = {PORTS + 1 + i: f"{core}/{1 + 2 * (number // TRANSIT) + i}" for i in range(2)}
        self.uplinks += [
            UplinkView(a=f"{name}/{port}", b=far, capacity_bps=UPLINK_BPS)
            for port, far in up.items()
        ]
        ports = [
            AggregatorPortView(
                port=p, kind="fiber", far=_far(number, p), endpoint=present.get(p), up=p in present
            )
            for p in range(1, PORTS + 1)
        ]
        ports += [AggregatorPortView(port=p, kind="uplink", far=far) for p, far in up.items()]
        self.aggregators.append(
            AggregatorView(
                name=name,
                dpid=f"{number:#018x}",
                connected=True,
                size=PORTS,
                used=len(present),
                free=PORTS - len(present),
                endpoints=list(present.values()),
                jobs=sorted({jobs[e] for e in present.values() if e in jobs}),
                ports=ports,
            )
        )

    def _devices(self, jobs: dict[str, str]) -> None:
        for i in range(SWITCHES):
            mine = sum(c.switch == f"ocs{i}" for c in self.circuits)
            self.switches.append(
                SwitchView(
                    name=f"ocs{i}",
                    url=f"calient+tl1://lightloom@192.0.2.{i + 1}:3082",
                    connected=True,
                    vendor="synthetic",
                    model="640 ports",
                    ports=mine + len(self.aggregators) * PORTS // SWITCHES,
                    circuits=mine,
                    foreign_circuits=0,
                )
            )
        servers: dict[str, list[str]] = defaultdict(list)
        for e in self.homes:
            servers[_server(e)].append(e)
        for name, mine_here in servers.items():
            on = sorted({jobs[e] for e in mine_here if e in jobs})
            self.nodes.append(
                NodeView(
                    name=name,
                    agent="192.0.2.100:7701",
                    reachable=True,
                    endpoints=mine_here,
                    jobs=on,
                    containers=sum(e in jobs for e in mine_here),
                )
            )


def _server(endpoint: str) -> str:
    return f"srv{int(endpoint[3:]) // PER_SERVER}"


def _far(aggregator: int, port: int) -> str:
    """Return the optical port at the other end of an aggregator port's cable."""
    slot = aggregator * 3 + (port - 1) // SWITCHES
    return f"ocs{(port - 1) % SWITCHES}/2.{slot // 32 + 1}.{slot % 32 + 1}"


def _transit(number: int) -> AggregatorView:
    ports = [AggregatorPortView(port=p, kind="uplink", far="") for p in range(1, 65)]
    return AggregatorView(
        name=f"core{number}",
        dpid=f"{0xC000 + number:#018x}",
        connected=True,
        size=0,
        used=0,
        free=0,
        endpoints=[],
        jobs=[],
        ports=ports,
    )


def _job_view(name: str, state: str, count: int, **more: object) -> JobView:
    blank: dict[str, object] = {
        "endpoints": [],
        "homes": [],
        "ranks": [],
        "spread": {},
        "span": 0,
        "excess_span": 0,
        "ring_crossings": 0,
        "exit_codes": [],
        "conditions": [],
    }
    about: dict[str, object] = {
        "name": name,
        "state": state,
        "count": count,
        "project": "default",
        "locality": Locality.PREFERRED,
        "policy": Policy.PAUSE,
        "rank_order": RankOrder.AGGREGATOR,
        "image": "trainer",
        "command": [],
        "env": {},
        "epoch": EPOCH,
    }
    return JobView.model_validate({**blank, **about, **more})
