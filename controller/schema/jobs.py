"""REST documents of jobs, their ranks and containers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from agentlink.values import Record, Where
from checkpoints import rules
from checkpoints.schemes import Scheme
from checkpoints.values import Apart
from controller.devices.engine import Pull
from controller.schema.base import JobState, Name, Request, View
from controller.schema.engine import EngineJobView
from controller.schema.marks import JobNames, Message, OwnerJob, Plain, Shown
from controller.schema.readings import fields
from readings.catalogue import of
from readings.reading import Object
from scheduler.model import Locality, OnLoss, Policy, RankOrder, TimeLimitAction
from sitefile import names

RESTART_PATTERN = r"^(never|on-failure(:[1-9][0-9]{0,2})?)$"
"""``never``, ``on-failure`` (three times) or ``on-failure:N``."""


class VolumeRequest(Request):
    """A volume of the site, and the path at which it appears in every container of the job."""

    volume: Name
    path: str = Field(max_length=4096)
    """Absolute, such as ``/data``."""
    read_only: bool | None = None
    """As the site file offers the volume when absent."""


class SecretRef(Request):
    """The name of a secret of the job's project, in place of a variable's value."""

    secret: str = Field(pattern=f"^{names.SECRET_NAME}$")


def _text_or_secret(value: object) -> object:
    if not isinstance(value, str | dict | SecretRef):
        raise ValueError('give a text, or {"secret": NAME}')
    return value


Variable = Annotated[
    Annotated[str, Tag("text")] | Annotated[SecretRef, Tag("secret")],
    Discriminator(lambda value: "text" if isinstance(value, str) else "secret"),
    BeforeValidator(_text_or_secret),
]


class LocalCheckpoints(Request):
    """Where a rank's checkpoints are on its server."""

    where: Where = Where.MEMORY
    size_bytes: int = Field(gt=0, le=2**50)
    """Of one rank's folder: ``keep`` finished steps and one that is being written, and with
    partners as much again for the copies of another rank."""
    keep: int = Field(default=2, ge=1, le=8)
    """Complete steps that are kept."""


class CheckpointCopies(Request):
    """How a rank's part survives the loss of its server."""

    scheme: Scheme | None = None
    """By default ``partner``, and ``single`` for a job of one rank."""
    apart: Apart = Apart.SERVER
    """What a part and its copy must not share."""
    set_size: int = Field(default=4, ge=2, le=16)
    """Of ``xor``: least number of ranks in a set."""


class SharedCheckpoints(Request):
    """A store that gets every n-th complete step."""

    store: Name
    """A volume of the site file."""
    every: int = Field(default=10, ge=1, le=100_000)


class Replicas(StrEnum):
    """Whether ranks' parts differ."""

    DISTINCT = "distinct"
    IDENTICAL = "identical"
    """Any rank's part is the whole state."""


def _rule(text: str) -> str:
    rules.parse_rule(text)
    return text


class CheckpointRequest(Request):
    """How the job's checkpoints are found whole, kept and copied."""

    complete: Annotated[str, AfterValidator(_rule)] = Field(default="rename", max_length=80)
    """What is whole: ``rename``, ``dcp``, ``orbax``, ``keras`` or ``marker: FILE``."""
    local: LocalCheckpoints
    copies: CheckpointCopies = CheckpointCopies()
    shared: SharedCheckpoints | None = None
    replicas: Replicas = Replicas.DISTINCT


class JobRequest(Request):
    """A job on ``count`` endpoints; ``command`` runs in one container per endpoint."""

    most_parts = 10_000
    """A job may name its endpoints."""

    name: Name | None = None
    """Chosen by the controller when absent."""
    count: int = Field(ge=1, le=1_000_000)
    project: Name = "default"
    priority: int = Field(default=0, ge=-100, le=100)
    """One level equals an hour of waiting, unless the site file says otherwise."""
    time_limit_s: float | None = Field(default=None, gt=0, le=3.2e8)
    """Upper bound of the expected run time: lets the job start early if it delays no other job."""
    time_limit_action: TimeLimitAction | None = None
    """At the limit: ``end`` the job, or ``ignore`` the limit; the site's choice when absent."""
    pinned: bool = False
    """Its light is never moved while it runs."""
    preemptible: bool = False
    """It may be stopped and queued again for a job of higher priority, if the site file turns
    preemption on."""
    locality: Locality = Locality.PREFERRED
    policy: Policy = Policy.PAUSE
    rank_order: RankOrder = RankOrder.AGGREGATOR
    image: str | None = None
    """By tag, digest or id; the controller's default image when absent."""
    command: list[str] = Field(default_factory=list)
    env: dict[str, Variable] = Field(default_factory=dict)
    """A variable's text, or ``{"secret": NAME}``: then the value is read when the job starts."""
    endpoints: list[str] = Field(default_factory=list)
    """Exactly these endpoints, if not empty."""
    model: str | None = None
    """Only endpoints of this hardware model."""
    min_memory_bytes: int = Field(default=0, ge=0, le=2**50)
    """Only endpoints with at least this much memory."""
    dark_tolerance_s: float | None = Field(default=None, gt=0, le=86400)
    """How long its network may be dark; from its framework's time-outs when absent."""
    checkpoint_grace_s: float | None = Field(default=None, gt=0, le=300)
    """With policy ``restart``: after SIGTERM every rank writes its checkpoint within this time and
    ends with 0, else the regroup is rolled back. Without it a rank has 10 s and any exit code."""
    restart: str = Field(default="never", pattern=RESTART_PATTERN)
    """When a rank dies: ``never``, ``on-failure`` (three times) or ``on-failure:N``."""
    pull: Pull = Pull.NEVER
    """When servers fetch the image from its registry."""
    cpu: float | None = Field(default=None, gt=0, le=4096)
    """Cores that one container may use."""
    memory_bytes: int | None = Field(default=None, gt=0, le=2**50)
    """Memory that one container may use, besides that of its GPU."""
    io_bps: int | None = Field(default=None, gt=0, le=2**50)
    """Bytes a second that one container may read from, and write to, each block device."""
    volumes: list[VolumeRequest] = Field(default_factory=list)
    """What the job reads, and what survives it: directories of the servers, by name."""
    record: Record | None = None
    """How much of its communication is recorded; by default as the site file's ``recording``."""
    checkpoint: CheckpointRequest | None = None
    """Without it nothing is kept of the job when a rank dies."""
    spares: int = Field(default=0, ge=0, le=64)
    """Idle endpoints reserved for the job: one takes a dead one's place by moving light."""
    spares_needed: bool = True
    """The job waits for its spares; false takes those that there are."""
    on_loss: OnLoss = OnLoss.WAIT
    """Without a spare: ``wait`` for as many endpoints as before, or ``shrink``."""
    at_least: int = Field(default=1, ge=1, le=1_000_000)
    """Ranks below which the job does not shrink."""

    @property
    def plain_env(self) -> Mapping[str, str]:
        """The variables whose value is stated, by name."""
        return {name: value for name, value in self.env.items() if isinstance(value, str)}

    @property
    def secrets(self) -> Mapping[str, str]:
        """By variable: the name of the secret that is its value."""
        found = self.env.items()
        return {name: value.secret for name, value in found if isinstance(value, SecretRef)}


class JobsRequest(Request):
    """Jobs that are queued together, or none of them."""

    most_parts = 200_000

    jobs: list[JobRequest] = Field(min_length=1, max_length=1000)
    """In the order in which they are queued."""


class JobsSubmittedView(View):
    """The names of jobs that were queued together, in the order of the request."""

    names: list[Plain]
    epoch: int


class PlanHintView(View):
    """A regroup that would make room for a waiting job; not proven optimal."""

    moves: int
    running_moves: int
    jobs_paused: JobNames
    paused_gpus: int
    command: Plain
    """The command that computes the exact plan."""


class WaitView(View):
    """Why a job waits, and what would end the wait."""

    position: int
    """In the queue, from 1."""
    queued: int
    """Number of waiting jobs."""
    code: Plain
    """``busy``, ``locality``, ``quota``, ``reserved``, ... for programs."""
    reason: Message
    remedy: Message
    reserved_at: float | None = None
    """Since when it has been the first in the queue."""
    could_start_at: float | None = None
    """Since when it waits only for endpoints that a regroup can bring closer together."""
    earliest_start: float | None = None
    """When its reservation begins, if all running jobs end as expected."""
    moves_needed: int | None = None
    """Least number of running endpoints that must move so that it fits now."""
    plan: PlanHintView | None = None


class PlacementView(View):
    """How good a job's placement is, and what remains for others."""

    span: int
    span_reachable: int
    """The least that a regroup can reach."""
    idle: int
    """Endpoints of the site that are idle, lit and available."""
    largest_compact: int
    """The largest job that fits under one aggregator now."""
    fragmentation: float
    """1 - largest_compact / idle."""
    stranded: dict[int, float]
    """Per job size, the share of idle endpoints that no job of this size can use compactly."""


class StepsView(View):
    """What the job's traffic shows about its steps (``scheduler.steptime``)."""

    placements: int
    """Number of different placements measured; with one, predictions are intervals."""
    ring_rate: float | None
    """Present fair share of its ring, as a fraction of an access link."""
    busy_fraction: float | None
    """Share of an access link that it uses on average in the present placement."""
    unidentified: list[Plain]
    """What the measurements do not show yet."""


class ConditionView(View):
    """One boolean fact about an object, since when, and why."""

    type: Plain
    status: bool
    reason: Plain = ""
    message: Message = ""
    since: float


class FailureView(View):
    """Why the job's latest run that failed did so."""

    rank: int
    """The rank that failed first."""
    endpoint: Plain
    epoch: int
    """Of the run that failed."""
    exit_code: int | None = None
    signal: Plain = ""
    """``SIGSEGV`` if a signal ended it."""
    oom: bool = False
    cause: Message
    others: Message = ""
    """What ended the other ranks."""
    lines: list[Plain] | None = None
    """The last lines of the rank's output; null in lists of jobs."""
    unread: Message = ""
    """Why its output could not be read; empty if it was."""


class RankView(View):
    """One rank of a job: where it runs and how fast."""

    rank: int
    endpoint: Plain
    home: Plain | None
    server: Plain
    """Empty if its endpoint is not in the site file any more."""
    state: Plain
    exit_code: int | None = None
    rx_bps: float | None = None
    tx_bps: float | None = None
    utilisation: float | None = None
    """Busy fraction of the endpoint, 0 to 1."""
    dark_time_s: float = 0.0
    """Sum over all regroups since the job started."""


class JobVolumeView(View):
    """A volume in the containers of a job."""

    volume: Plain
    path: Plain
    read_only: bool


class JobView(View):
    """One job. ``ranks`` and ``endpoints`` are in rank order, empty while pending."""

    name: Plain
    state: JobState
    reason: Message = ""
    """Why it is in this state: what a pending job waits for, how a failed one ended."""
    count: int
    project: Annotated[str, Shown.PROJECT]
    user: Plain = ""
    """Name of the token that submitted it; empty where that is not known."""
    priority: int = 0
    time_limit_s: float | None = None
    time_limit_action: TimeLimitAction = TimeLimitAction.IGNORE
    pinned: bool = False
    preemptible: bool = False
    locality: Locality
    policy: Policy
    rank_order: RankOrder
    image: Plain
    """As it was asked for."""
    image_digest: Plain = ""
    """What every rank of every start runs: NAME@sha256:... or an id. Empty until it is known."""
    command: list[Plain]
    env: dict[Plain, Plain]
    secrets: dict[Plain, Plain] = Field(default_factory=dict)
    """By variable: the name of the secret that is its value."""
    model: Plain | None = None
    min_memory_bytes: int = 0
    cpu: float | None = None
    """Cores that one container may use, None without limit; so with the next two."""
    memory_bytes: int | None = None
    io_bps: int | None = None
    volumes: list[JobVolumeView] = Field(default_factory=list)
    record: Record = Record.COUNTS
    restart: Plain = "never"
    pull: Pull = Pull.NEVER
    dark_tolerance_s: float | None = None
    checkpoint_grace_s: float | None = None
    checkpoint: Annotated[CheckpointRequest | None, Shown.ALL] = None
    """How its checkpoints are kept, with every default filled in; null without any."""
    spares: list[Plain] = Field(default_factory=list)
    """Idle endpoints reserved for it now."""
    spares_asked: int = 0
    spares_needed: bool = True
    """It waits for its spares; false takes those that there are."""
    on_loss: OnLoss = OnLoss.WAIT
    at_least: int = 1
    """Ranks below which it does not shrink."""
    recovery: Plain | None = None
    """The phase of the recovery that goes on: ``decide``, ``stop``, ``light``, ``fetch``, ``start``
    or ``first_step``, or ``queue`` while it waits for other endpoints; null without one."""
    endpoints: list[Plain]
    homes: list[Plain | None]
    ranks: list[RankView]
    spread: dict[Plain, int]
    """Endpoints per aggregator; a dark endpoint counts under ``dark``."""
    span: int
    excess_span: int
    ring_crossings: int
    """Links of the ring that cross between aggregators."""
    rx_bps: float | None = None
    tx_bps: float | None = None
    utilisation: float | None = None
    epoch: int
    """Epoch at which the containers were started; part of their names."""
    restarts: int = 0
    submitted_at: float
    started_at: float | None = None
    finished_at: float | None = None
    exit_codes: list[int | None]
    transaction: Plain | None = None
    """The regroup that holds the job at this moment."""
    pauses: int = 0
    """How often its light was moved while it ran."""
    wait: WaitView | None = None
    """Of a pending job."""
    placement: PlacementView | None = None
    """Of a job that holds endpoints."""
    steps: StepsView | None = None
    """Of a running job on a site whose link rates are known."""
    conditions: list[ConditionView]
    failure: FailureView | None = None
    """Of a job that failed, or that runs again after a failure."""
    engine: EngineJobView | None = None
    """Of a job that another engine owns; null for one of lightloom's queue."""


class NicView(View):
    """A container's data NIC as seen inside the container."""

    mtu: int
    rdma_device: Plain = ""
    gid_index: int | None = None
    """Of the RoCEv2 GID that maps its IPv4 address."""
    dscp: int | None = None


class GpuFiguresView(View):
    """What NVML reports of a container's GPU; null is not reported."""

    __annotations__ = fields(of(Object.GPU))


class ContainerView(View):
    """One container as an agent last reported it."""

    name: Plain
    job: OwnerJob
    rank: int
    epoch: int
    endpoint: Plain
    server: Plain
    state: Plain
    exit_code: int | None = None
    oom: bool = False
    started_at: float | None = None
    finished_at: float | None = None
    container_id: Plain = ""
    rx_bps: float | None = None
    tx_bps: float | None = None
    utilisation: float | None = None
    memory_bytes: int | None = None
    source: Plain | None = None
    """Where the utilisation comes from: ``nvml`` or ``emulated``."""
    reason: Message = ""
    """How it ended, or what is wrong with it while it runs."""
    nic: NicView | None = None
    gpu: GpuFiguresView | None = None


class SecretView(View):
    """A secret that jobs of a project may use. Its value is never shown."""

    project: str
    name: str
