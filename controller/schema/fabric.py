"""REST documents of endpoints, aggregators, optical switches, servers and events."""

from __future__ import annotations

from typing import Annotated, Literal

from controller.schema.base import Severity, View
from controller.schema.jobs import GpuFiguresView
from controller.schema.readings import Readings
from controller.schema.visibility import Internal, JobNames, Message, Plain, Visibility

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

    name: Plain
    server: Plain
    kind: Plain
    model: Plain
    memory_bytes: int
    ip: Plain
    mac: Plain
    fiber: Plain
    """Far end of its fiber: ``ocs0/1.1.1``, or ``as0/4`` when hard-wired."""
    home: Plain | None
    port: Plain | None
    """Aggregator port that carries it now: ``as0/3``."""
    state: EndpointState
    job: Annotated[str | None, Visibility.HOLDER] = None
    rank: Annotated[int | None, Visibility.OWN] = None
    emulated: bool = False
    reason: Annotated[str, Visibility.OWN, Visibility.MESSAGE] = ""
    rx_bps: Annotated[float | None, Visibility.OWN] = None
    tx_bps: Annotated[float | None, Visibility.OWN] = None
    utilisation: Annotated[float | None, Visibility.OWN] = None
    source: Annotated[str | None, Visibility.OWN] = None
    """Where the figures of its GPU come from: ``nvml`` or ``emulated``; None when nothing runs."""
    memory_used_bytes: Annotated[int | None, Visibility.OWN] = None
    gpu: Annotated[GpuFiguresView | None, Visibility.OWN] = None
    """What NVML reports while a job runs on it."""
    unfit: Annotated[str, Visibility.OWN, Visibility.MESSAGE] = ""
    """What its agent finds wrong (the GPU is lost, hangs, has an Xid); empty if it is fit."""


class AggregatorPortView(View):
    """One port of an aggregator and what it leads to."""

    port: int
    kind: Literal["fiber", "fixed", "uplink"]
    far: Plain
    """``ocs0/2.1.1``, an endpoint's name, or the far uplink port ``as1/9``."""
    endpoint: Annotated[str | None, Visibility.ENDPOINT] = None
    up: bool | None = None
    quarantined: bool = False
    rx_bps: Annotated[float | None, Visibility.OWN] = None
    tx_bps: Annotated[float | None, Visibility.OWN] = None
    readings: Annotated[Readings | None, Visibility.OWN] = None


class AggregatorView(View):
    """One aggregator."""

    name: Plain
    dpid: Plain
    connected: bool
    size: int
    used: int
    free: int
    endpoints: list[Plain]
    jobs: JobNames
    ports: list[AggregatorPortView]
    model: Plain = ""
    """What the switch says it is; empty until it was probed."""
    tables: int | None = None
    metadata_bits: int | None = None
    """Widest metadata that a probe found kept and matched."""
    readings: Annotated[Readings | None, Visibility.ALL] = None


class SwitchView(View):
    """One optical switch."""

    name: Plain
    url: Internal
    connected: bool
    vendor: Plain = ""
    model: Plain = ""
    serial: Plain = ""
    firmware: Plain = ""
    ports: int
    """Ports that the site file uses."""
    circuits: int
    foreign_circuits: int
    """Circuits of other systems on the device; never changed."""
    error: Internal = ""
    readings: Annotated[Readings | None, Visibility.ALL] = None


class CircuitView(View):
    """One duplex circuit read back from a switch; with endpoint and aggregator if it is ours."""

    switch: Plain
    a: Plain
    b: Plain
    duplex: bool = True
    state: Plain
    name: Plain = ""
    owner: Plain = ""
    endpoint: Plain | None = None
    aggregator: Plain | None = None
    aggregator_port: int | None = None


class NodeView(View):
    """One server and its agent."""

    name: Plain
    agent: Internal
    reachable: bool
    endpoints: list[Plain]
    jobs: JobNames
    containers: int
    readings: Annotated[Readings | None, Visibility.KEEPERS] = None
    """What its agent measures; null for members of projects."""


class EventView(View):
    """One event. ``id`` is stable and grows; ``reason`` is one CamelCase word."""

    id: int
    time: float
    severity: Severity
    object: Annotated[str, Visibility.SUBJECT]
    """``job/red``, ``endpoint/gpu3``, ``aggregator/as0``, ``transaction/t7``."""
    reason: Plain
    message: Message
    epoch: int


class UplinkView(View):
    """A link between two aggregators."""

    a: Plain
    b: Plain
    capacity_bps: float | None = None


class SiteView(View):
    """What is cabled, for drawing the fabric; changes only with the cabling."""

    name: Plain
    subnet: Plain
    servers: list[Plain]
    endpoints: list[EndpointView]
    aggregators: list[AggregatorView]
    switches: list[SwitchView]
    uplinks: list[UplinkView]
    access_bps: float | None = None
    inter_aggregator_bps: float | None = None
    engine: Plain | None = None
    """The other engine, such as ``slurm``, that owns the jobs of some endpoints."""


class OpticalPortView(View):
    """One cabled port as its switch reports it. Its light is in the list of powers."""

    port: Plain
    health: Plain
    """``blocked`` (healthy, no circuit), ``tuning``, ``tuned`` or ``failed``."""
    label: Internal = ""
    """The label that the switch's operator gave it."""


class AlarmView(View):
    """An active alarm, in the switch's own words."""

    object: str
    severity: str
    text: str


class OpticsView(View):
    """One optical switch, read at ``time``."""

    switch: Plain
    time: float
    ports: list[OpticalPortView]
    alarms: Annotated[list[AlarmView], Visibility.KEEPERS]
