"""Defines the site file's schema: shape and value checks of each field (pydantic).

Checks that need more than one field (a port used twice, a fiber to an unknown device) are in
:mod:`sitefile.cabling`.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    IPvAnyAddress,
    StringConstraints,
    model_validator,
)

from base.addresses import split_address
from sitefile import names
from sitefile.engine import EngineModel
from sitefile.links import DEFAULT_OPTIC, LinksModel, Optic
from sitefile.logs import LogsModel
from sitefile.notices import MAX_NOTICES, NoticeModel
from sitefile.passwords import PasswordModel
from sitefile.quantities import NUMBER, off_word
from sitefile.recovery import RecoveryModel
from sitefile.registries import RegistryModel, RegistryName
from sitefile.scheduling import ProjectModel, QueueModel, RegroupModel
from sitefile.volumes import UsersModel, VolumeModel
from sitefile.words import exact_text, hexadecimal

Name = Annotated[str, StringConstraints(pattern=f"^{names.SITE_OBJECT}$")]
PortText = Annotated[str, StringConstraints(pattern=r"^[^/\s]+/[^/\s]+$", max_length=80)]


def _host_and_port(text: str) -> str:
    """Refuse what is not ``host:port`` or ``[IPv6]:port``. ValueError explains how to write it."""
    split_address(text, lowest=1)
    return text


def _with_address(text: str) -> str:
    """Refuse a URL with an unusable host or port. ValueError."""
    parts = urlsplit(text)
    if not parts.hostname:
        raise ValueError("the URL has no host")
    if parts.port is not None:
        split_address(parts.netloc.rpartition("@")[2], lowest=1)
    return text


HostPort = Annotated[str, StringConstraints(max_length=300), AfterValidator(_host_and_port)]
DnsName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,253}$")]
Fingerprint = Annotated[
    str,
    StringConstraints(pattern=r"^([0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2}$|^[0-9A-Fa-f]{64}$"),
    AfterValidator(lambda text: text.replace(":", "").lower()),
]
"""Output of `openssl x509 -fingerprint -sha256`, with or without colons."""
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=4096)]
Mac = Annotated[
    str,
    BeforeValidator(exact_text),
    StringConstraints(pattern=r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$"),
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ServerModel(_Strict):
    """A machine with endpoints."""

    name: Name
    agent: HostPort = Field(description="host:port of the server's agent")


class EndpointModel(_Strict):
    """One schedulable resource with its own NIC port and fiber."""

    name: Name
    server: Name
    ip: IPv4Address
    mac: Mac = Field(description="lower-case, colon-separated")
    nic: Annotated[str, StringConstraints(min_length=1, max_length=15)] = Field(
        description="interface name on the server"
    )
    kind: Literal["gpu"] = "gpu"
    model: str = ""
    memory_gib: Annotated[float, Field(ge=0), NUMBER] = 0
    gpu_uuid: str = Field("", description="NVML UUID of the GPU this NIC port serves")
    emulated: bool = Field(False, description="a CPU share stands in for the GPU")
    attach: Literal["move", "macvlan"] = Field(
        "move",
        description="how a container gets the NIC: the interface (or virtual function)"
        " itself moves in, or a macvlan on top of it",
    )
    optic: Optic = Field(DEFAULT_OPTIC, description="kind of its optics, a key of links.optics")


class AggregatorModel(_Strict):
    """An OpenFlow 1.3 packet switch; the fibers define its ports."""

    name: Name
    dpid: Annotated[int, Field(gt=0, lt=2**64), NUMBER, BeforeValidator(hexadecimal)] = Field(
        description="datapath id: a number, such as 0x1f"
    )
    tls: bool | None = Field(None, description="default: controller.openflow.tls")
    certificate: DnsName | None = Field(
        None, description="DNS name in its certificate; default: NAME.aggregator.lightloom"
    )
    fingerprint: Fingerprint | None = Field(
        None, description="SHA-256 of its certificate, in place of the name"
    )
    address: IPvAnyAddress | None = Field(
        None, description="the only address that it may connect from"
    )
    optic: Optic = Field(DEFAULT_OPTIC, description="kind of its optics, a key of links.optics")

    @model_validator(mode="after")
    def _one_pin(self) -> AggregatorModel:
        if self.certificate is not None and self.fingerprint is not None:
            raise ValueError("give either certificate or fingerprint")
        if self.tls is False and (self.certificate or self.fingerprint):
            raise ValueError("a certificate needs TLS: remove it, or remove tls: false")
        return self


class SwitchModel(_Strict):
    """An optical circuit switch by URL."""

    name: Name
    url: Annotated[
        str,
        StringConstraints(pattern=r"^[a-z0-9]+\+[a-z0-9]+://[^\s/]+$"),
        AfterValidator(_with_address),
    ]
    password: PasswordModel | None = None


class OpenFlowModel(_Strict):
    """Where the controller listens for aggregators."""

    listen: HostPort = "127.0.0.1:6653"
    netns: str | None = Field(None, description="network namespace of the listening socket")
    tls: bool = Field(
        True,
        description="aggregators authenticate with TLS; false: plain TCP without authentication",
    )


class ControllerModel(_Strict):
    """Where the controller listens."""

    api: HostPort = "127.0.0.1:8470"
    openflow: OpenFlowModel = OpenFlowModel()


class NetworkModel(_Strict):
    """Settings of every data NIC."""

    mtu: Annotated[int, Field(ge=576, le=9216), NUMBER] | None = Field(
        None, description="default: the interface's own MTU"
    )
    dscp: Annotated[int, Field(ge=0, le=63), NUMBER] | None = Field(
        None, description="DSCP of RoCE traffic; the switches must map it to the lossless queue"
    )


class SecretsModel(_Strict):
    """Where the secrets of the projects' jobs are."""

    directory: AbsolutePath = Field(
        description="has a file PROJECT/NAME of mode 0600 for each secret"
    )


class EmulatedVolumeModel(_Strict):
    """A directory that every emulated server offers to jobs, as shared storage does."""

    path: str | None = Field(
        None,
        pattern=r"^(/[A-Za-z0-9_@+-][A-Za-z0-9._@+-]*)+$",
        description="an existing directory; default: one of the rack, removed with it",
    )
    mode: Literal["ro", "rw"] = "ro"


class EmulationModel(_Strict):
    """Rates and times of the emulated rack; the controller ignores them."""

    access_bps: Annotated[float, Field(gt=0), NUMBER] = 250e6
    inter_aggregator_bps: Annotated[float, Field(gt=0), NUMBER] = 114e6
    mirror_time_s: Annotated[float, Field(ge=0), NUMBER] = 0.025
    bulk_time_s: Annotated[float, Field(ge=0), NUMBER] = 0.2
    link_up_s: Annotated[float, Field(ge=0), NUMBER] = 0.0
    gpu_share: Annotated[float, Field(gt=0), NUMBER] = 0.25
    volumes: dict[Name, EmulatedVolumeModel] = Field(
        default={}, description="volumes that the rack gives to its agents, by name"
    )


class SiteModel(_Strict):
    """A site: its devices and cables."""

    apiVersion: Literal["lightloom/v1"] = "lightloom/v1"  # noqa: N815 - the usual key in YAML files
    kind: Literal["Site"] = "Site"
    name: Name
    subnet: IPv4Network = Field(description="subnet of the endpoints' addresses")
    servers: list[ServerModel] = Field(min_length=1)
    endpoints: list[EndpointModel] = Field(min_length=1)
    aggregators: list[AggregatorModel] = Field(min_length=1)
    switches: list[SwitchModel] = []
    fibers: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = Field(
        min_length=1, description="pairs: [endpoint, switch/port], [aggregator/port, switch/port]"
    )
    uplinks: list[Annotated[list[PortText], Field(min_length=2, max_length=2)]] = Field(
        default=[], description="pairs: [aggregator/port, aggregator/port]"
    )
    homes: dict[Name, Name] = Field(
        default={}, description="aggregators for endpoints that are dark at the first start"
    )
    projects: list[ProjectModel] = Field(
        default=[], description="projects that may submit; empty: any project, without quota"
    )
    users: UsersModel = UsersModel()
    volumes: dict[Name, VolumeModel] = Field(
        default={}, description="directories of the servers that jobs may use, by name"
    )
    queue: QueueModel = QueueModel()
    regroup: RegroupModel = RegroupModel()
    recovery: RecoveryModel = RecoveryModel()
    controller: ControllerModel = ControllerModel()
    network: NetworkModel = NetworkModel()
    links: LinksModel = LinksModel()
    recording: Annotated[names.Recording, BeforeValidator(off_word)] = Field(
        "counts", description="of jobs that do not say how much of their communication is recorded"
    )
    logs: LogsModel = LogsModel()
    registries: dict[RegistryName, RegistryModel] = Field(
        default={}, description="registries whose images only some projects may run"
    )
    secrets: SecretsModel | None = Field(None, description="absent: jobs have no secrets")
    notices: list[NoticeModel] = Field(
        default=[], max_length=MAX_NOTICES, description="whom to tell that a job has ended"
    )
    engine: EngineModel | None = Field(
        None, description="a scheduler beside lightloom that owns the jobs of some endpoints"
    )
    emulation: EmulationModel | None = None


class ShortAggregatorModel(_Strict):
    """An aggregator by port counts, the planner's short form."""

    name: str
    ports: dict[str, Annotated[int, Field(ge=0), NUMBER]]


class ShortEndpointModel(_Strict):
    """An endpoint on an optical switch (``ocs``) or hard-wired to an aggregator (``fixed``)."""

    name: str
    ocs: str | None = None
    fixed: str | None = None
    server: str = ""
    model: str = ""

    @model_validator(mode="after")
    def _one_side(self) -> ShortEndpointModel:
        if (self.ocs is None) == (self.fixed is None):
            raise ValueError("give either ocs, or fixed (the aggregator it is hard-wired to)")
        return self


class ShortSiteModel(_Strict):
    """The planner's short form of a site: port counts without cables."""

    name: str = "site"
    aggregators: list[ShortAggregatorModel] = Field(min_length=1)
    endpoints: list[ShortEndpointModel] = Field(min_length=1)


class SpreadModel(_Strict):
    """At most ``most`` of a job's endpoints in one server, or under one aggregator as well."""

    by: Literal["server", "aggregator"] = "server"
    most: Annotated[int, Field(ge=1), NUMBER]


class JobModel(_Strict):
    """A running job of a state file."""

    name: str
    endpoints: list[str] = Field(min_length=1)
    policy: Literal["live", "pause", "restart"] = "pause"
    pinned: bool = False
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER] = 1.0
    spread: SpreadModel | None = None
    spares: list[str] = []


class LimitsModel(_Strict):
    """Budgets of one regroup."""

    objective: Literal["pauses", "moves"] = "pauses"
    max_jobs_paused: Annotated[int, Field(ge=0), NUMBER] | None = None
    max_moves: Annotated[int, Field(ge=0), NUMBER] | None = None
    time_limit_s: Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER] = 10.0


class StateModel(_Strict):
    """A state file: the offline input of the planner."""

    site: ShortSiteModel | str
    homes: dict[str, str | None] = {}
    jobs: list[JobModel] = []
    limits: LimitsModel = LimitsModel()


def site_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the site file, for editors and checkers."""
    schema = SiteModel.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
