"""REST documents of endpoints, aggregators, optical switches, servers and events."""

from __future__ import annotations

from typing import Literal

from controller.schema.base import Severity, View
from controller.schema.jobs import GpuFiguresView
from controller.schema.readings import Readings

EndpointState = Literal[
    "idle",
    "busy",
    "moving",
    "reserved",
    "draining",
    "drained",
    "held",
    "flapping",
    "unready",
    "dark",
    "unreachable",
    "lost",
    "quarantined",
]
"""What an endpoint is; docs/console.md says when."""


class EndpointView(View):
    """One endpoint, its cable and its present home."""

    name: str
    server: str
    kind: str
    model: str
    memory_bytes: int
    ip: str
    mac: str
    fiber: str
    """Far end of its fiber: ``ocs0/1.1.1``, or ``as0/4`` when hard-wired."""
    home: str | None
    port: str | None
    """Aggregator port that carries it now: ``as0/3``."""
    state: EndpointState
    job: str | None = None
    rank: int | None = None
    emulated: bool = False
    reason: str = ""
    rx_bps: float | None = None
    tx_bps: float | None = None
    utilisation: float | None = None
    source: str | None = None
    """Where the figures of its GPU come from: ``nvml`` or ``emulated``; None when nothing runs."""
    memory_used_bytes: int | None = None
    gpu: GpuFiguresView | None = None
    """What NVML reports while a job runs on it."""
    unfit: str = ""
    """What its agent finds wrong (the GPU is lost, hangs, has an Xid); empty if it is fit."""


class AggregatorPortView(View):
    """One port of an aggregator and what it leads to."""

    port: int
    kind: Literal["fiber", "fixed", "uplink"]
    far: str
    """``ocs0/2.1.1``, an endpoint's name, or the far uplink port ``as1/9``."""
    endpoint: str | None = None
    up: bool | None = None
    quarantined: bool = False
    rx_bps: float | None = None
    tx_bps: float | None = None
    readings: Readings | None = None


class AggregatorView(View):
    """One aggregator."""

    name: str
    dpid: str
    connected: bool
    size: int
    used: int
    free: int
    endpoints: list[str]
    jobs: list[str]
    ports: list[AggregatorPortView]
    readings: Readings | None = None


class SwitchView(View):
    """One optical switch."""

    name: str
    url: str
    connected: bool
    vendor: str = ""
    model: str = ""
    serial: str = ""
    firmware: str = ""
    ports: int
    """Ports that the site file uses."""
    circuits: int
    foreign_circuits: int
    """Circuits of other systems on the device; never changed."""
    error: str = ""
    readings: Readings | None = None


class CircuitView(View):
    """One duplex circuit read back from a switch; with endpoint and aggregator if it is ours."""

    switch: str
    a: str
    b: str
    duplex: bool = True
    state: str
    name: str = ""
    owner: str = ""
    endpoint: str | None = None
    aggregator: str | None = None
    aggregator_port: int | None = None


class NodeView(View):
    """One server and its agent."""

    name: str
    agent: str
    reachable: bool
    endpoints: list[str]
    jobs: list[str]
    containers: int
    readings: Readings | None = None
    """What its agent measures; null for members of projects."""


class EventView(View):
    """One event. ``id`` is stable and grows; ``reason`` is one CamelCase word."""

    id: int
    time: float
    severity: Severity
    object: str
    """``job/red``, ``endpoint/gpu3``, ``aggregator/as0``, ``transaction/t7``."""
    reason: str
    message: str
    epoch: int


class UplinkView(View):
    """A link between two aggregators."""

    a: str
    b: str
    capacity_bps: float | None = None


class SiteView(View):
    """What is cabled, for drawing the fabric; changes only with the cabling."""

    name: str
    subnet: str
    servers: list[str]
    endpoints: list[EndpointView]
    aggregators: list[AggregatorView]
    switches: list[SwitchView]
    uplinks: list[UplinkView]
    access_bps: float | None = None
    inter_aggregator_bps: float | None = None
    engine: str | None = None
    """The other engine, such as ``slurm``, that owns the jobs of some endpoints."""


class OpticalPortView(View):
    """One cabled port as its switch reports it. Its light is in the list of powers."""

    port: str
    health: str
    """``blocked`` (healthy, no circuit), ``tuning``, ``tuned`` or ``failed``."""
    label: str = ""
    """The label that the switch's operator gave it."""


class AlarmView(View):
    """An active alarm, in the switch's own words."""

    object: str
    severity: str
    text: str


class OpticsView(View):
    """One optical switch, read at ``time``."""

    switch: str
    time: float
    ports: list[OpticalPortView]
    alarms: list[AlarmView]
