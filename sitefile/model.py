"""Models a cabled site: every fiber, address and device of the site file, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from scheduler.model import Aggregator, Endpoint, Site
from sitefile import names
from sitefile.engine import EnginePolicy
from sitefile.links import DEFAULT_OPTIC, LinkPolicy
from sitefile.logs import LogPolicy
from sitefile.notices import Receiver
from sitefile.passwords import PasswordRef
from sitefile.recovery import RecoveryPolicy
from sitefile.registries import Registry
from sitefile.scheduling import Scheduling
from sitefile.volumes import Users, Volume

_Named = TypeVar("_Named", "Server", "EndpointCable", "AggregatorCable", "SwitchCable")


@dataclass(slots=True, frozen=True, order=True)
class Port:
    """One port of one device, written ``device/port`` (``ocs0/1.2.3``, ``as0/4``)."""

    device: str
    port: str

    @classmethod
    def parse(cls, text: str) -> Port:
        """Parse ``device/port``. Raises ValueError when either half is missing."""
        device, _, port = text.partition("/")
        if not device or not port or "/" in port:
            raise ValueError(f"{text!r} is not of the form device/port")
        return cls(device, port)

    def __str__(self) -> str:
        return f"{self.device}/{self.port}"


@dataclass(slots=True, frozen=True)
class Server:
    """A machine with endpoints; ``agent`` is the host:port of its agent."""

    name: str
    agent: str


@dataclass(slots=True, frozen=True)
class Fiber:
    """A fiber of an endpoint: the port of its NIC, and its far end.

    ``end.device`` is an optical switch, or an aggregator when the endpoint is hard-wired.
    """

    nic: str
    mac: str
    end: Port


@dataclass(slots=True, frozen=True)
class EndpointCable:
    """One endpoint: its server, its address and its fibers, of which a site file has one."""

    name: str
    server: str
    ip: str
    prefix_len: int
    fibers: tuple[Fiber, ...]
    kind: str = "gpu"
    model: str = ""
    memory_bytes: int = 0
    gpu_uuid: str = ""
    emulated: bool = False
    attach: Literal["move", "macvlan"] = "move"
    """How a container gets the NIC: the NIC itself moves in, or a macvlan on top of it."""
    optic: str = DEFAULT_OPTIC

    @property
    def nic(self) -> str:
        """The NIC of the first fiber."""
        return self.fibers[0].nic

    @property
    def mac(self) -> str:
        """The MAC of that NIC."""
        return self.fibers[0].mac

    @property
    def fiber(self) -> Port:
        """The far end of the first fiber."""
        return self.fibers[0].end


@dataclass(slots=True, frozen=True)
class AggregatorCable:
    """An aggregator's ports: ``fibers`` go to optical switches, ``fixed`` to endpoints."""

    name: str
    dpid: int
    fibers: Mapping[int, Port]
    fixed: Mapping[int, str]
    tls: bool = False
    """Whether OpenFlow requires TLS; a site file enables it by default."""
    certificate: str | None = None
    """DNS name in its certificate; None means the name that ``lightloom pki`` writes."""
    fingerprint: str | None = None
    """SHA-256 of its certificate, 64 hexadecimal digits; replaces the name."""
    address: str | None = None
    """The only IP address it may connect from; None means any."""
    optic: str = DEFAULT_OPTIC


@dataclass(slots=True, frozen=True)
class SwitchCable:
    """An optical switch by URL (``calient+tl1://user@host:3082``)."""

    name: str
    url: str
    password: PasswordRef | None = None


@dataclass(slots=True, frozen=True)
class Uplink:
    """A link between two aggregators."""

    a: Port
    b: Port


@dataclass(slots=True, frozen=True)
class EmulatedVolume:
    """A directory that every emulated server offers; ``path`` None: one of the rack's own."""

    path: str | None = None
    writable: bool = False


@dataclass(slots=True, frozen=True)
class Emulation:
    """Settings of the emulated rack beyond the cabling; a real rack has no such section."""

    access_bps: float = 250e6
    inter_aggregator_bps: float = 114e6
    mirror_time_s: float = 0.025
    bulk_time_s: float = 0.2
    link_up_s: float = 0.0
    gpu_share: float = 0.25
    """CPU share, in cores, that stands in for one GPU."""
    volumes: Mapping[str, EmulatedVolume] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class CabledSite:
    """The content of a site file. ``homes`` assigns dark endpoints at the first start."""

    name: str
    servers: tuple[Server, ...]
    endpoints: tuple[EndpointCable, ...]
    aggregators: tuple[AggregatorCable, ...]
    switches: tuple[SwitchCable, ...]
    uplinks: tuple[Uplink, ...]
    homes: Mapping[str, str]
    subnet: str
    openflow_listen: str = "127.0.0.1:6653"
    openflow_netns: str | None = None
    api_listen: str = "127.0.0.1:8470"
    emulation: Emulation | None = None
    scheduling: Scheduling = field(default_factory=Scheduling)
    """Projects, queue and automatic regroups."""
    users: Users = field(default_factory=Users)
    """The user whose files jobs read and write."""
    volumes: Mapping[str, Volume] = field(default_factory=dict)
    """The volumes that jobs may use, by name."""
    mtu: int | None = None
    """MTU of every data NIC; None keeps the interfaces' values."""
    dscp: int | None = None
    """DSCP of RoCE traffic, 0 to 63; None keeps the devices' values."""
    links: LinkPolicy = field(default_factory=LinkPolicy)
    """How long links need from light to carrier."""
    recording: names.Recording = "counts"
    """How much of a job's communication is recorded, if the job does not set it."""
    logs: LogPolicy = field(default_factory=LogPolicy)
    """How much output the agents keep."""
    registries: tuple[Registry, ...] = ()
    """Registries whose images only some projects may run."""
    secrets: Path | None = None
    """The directory of the projects' secrets; None when jobs have none."""
    notices: tuple[Receiver, ...] = ()
    """Who is notified that a job has ended."""
    recovery: RecoveryPolicy = field(default_factory=RecoveryPolicy)
    """What stands by for lost hardware."""
    engine: EnginePolicy | None = None
    """The scheduler that owns the jobs of some endpoints; None: all are lightloom's."""

    @property
    def engine_endpoints(self) -> frozenset[str]:
        """The endpoints that only the engine's jobs get."""
        return self.engine.endpoints() if self.engine is not None else frozenset()

    def server(self, name: str) -> Server:
        """Return the server called ``name`` or raise KeyError."""
        return _named(self.servers, name)

    def endpoint(self, name: str) -> EndpointCable:
        """Return the endpoint called ``name`` or raise KeyError."""
        return _named(self.endpoints, name)

    def aggregator(self, name: str) -> AggregatorCable:
        """Return the aggregator called ``name`` or raise KeyError."""
        return _named(self.aggregators, name)

    def switch(self, name: str) -> SwitchCable:
        """Return the optical switch called ``name`` or raise KeyError."""
        return _named(self.switches, name)

    def scheduler_site(self) -> Site:
        """Return the port counts that the scheduler plans with."""
        optical = {switch.name for switch in self.switches}
        endpoints = tuple(
            Endpoint(
                name=e.name,
                ocs=e.fiber.device if e.fiber.device in optical else None,
                fixed=None if e.fiber.device in optical else e.fiber.device,
                server=e.server,
                kind=e.kind,
                model=e.model,
                memory_bytes=e.memory_bytes,
            )
            for e in self.endpoints
        )
        aggregators = []
        for cable in self.aggregators:
            counts: dict[str, int] = {}
            for far in cable.fibers.values():
                counts[far.device] = counts.get(far.device, 0) + 1
            aggregators.append(Aggregator(cable.name, counts, fixed_ports=len(cable.fixed)))
        return Site(self.name, endpoints, tuple(aggregators))


def _named(items: tuple[_Named, ...], name: str) -> _Named:
    for item in items:
        if item.name == name:
            return item
    raise KeyError(name)
