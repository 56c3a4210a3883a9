"""REST documents of jobs, their ranks and containers."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

from pydantic import BeforeValidator, Discriminator, Field, Tag, create_model

from agentlink.values import Record
from controller.schema.base import JobState, RequestModel, View
from controller.schema.engine import EngineJobView
from controller.schema.readings import fields as reading_fields
from controller.schema.submit.request import CheckpointRequest, JobRequest, SecretRef
from controller.schema.submit.wire import RequestBody, bare, body
from controller.schema.visibility import JobNames, Message, OwnerJob, Plain, Visibility
from readings.catalogue import of
from readings.reading import Object
from scheduler.model import TimeLimitAction


def _text_or_secret(value: object) -> object:
    if not isinstance(value, str | dict | RequestBody):
        raise ValueError('give a text, or {"secret": NAME}')
    return value


if TYPE_CHECKING:
    SecretBody: TypeAlias = RequestBody
    JobBody: TypeAlias = RequestBody
    CheckpointBody: TypeAlias = RequestBody
else:
    SecretBody = body(SecretRef)
    CheckpointBody = body(CheckpointRequest)

Variable = Annotated[
    Annotated[str, Tag("text")] | Annotated[SecretBody, Tag("secret")],
    Discriminator(lambda value: "text" if isinstance(value, str) else "secret"),
    BeforeValidator(_text_or_secret),
]


class _LargeBody(RequestBody):
    most_parts = 10_000
    """A job may name its endpoints."""


if not TYPE_CHECKING:
    JobBody = body(JobRequest, _LargeBody, env=dict[str, Variable])


def read_job(document: object) -> JobRequest:
    """Return the job of a request. Raises pydantic's ValidationError."""
    read: JobRequest = JobBody.model_validate(document).value()
    return read


class JobsRequest(RequestModel):
    """Jobs that are queued together, or none of them."""

    most_parts = 200_000

    jobs: list[JobBody] = Field(min_length=1, max_length=1000)
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


_SHOWN_BEFORE = {
    "user": ("count", "project"),
    "time_limit_action": ("priority", "time_limit_s"),
    "image": ("pinned", "preemptible", "locality", "policy", "rank_order"),
    "volumes": ("model", "min_memory_bytes", "cpu", "memory_bytes", "io_bps"),
    "checkpoint": ("restart", "pull", "dark_tolerance_s", "checkpoint_grace_s"),
}
"""Where the view shows fields of the request; the others stand before ``recovery``."""
_ALWAYS = frozenset({"count", "project", "locality", "policy", "rank_order"})
"""Fields of the request that every version has shown."""
_SHOWN = {"project": Visibility.PROJECT}
"""Marks of fields of the request; the others hold the owner's own words."""


def _with_asked(own: type[View]) -> type[View]:
    """Return a view with the fields of the request that it does not have itself."""
    hints = get_type_hints(JobRequest, include_extras=True)
    asked = {
        field.name: (
            Annotated[bare(hints[field.name]), _SHOWN.get(field.name, Visibility.ALL)],
            ... if field.name in _ALWAYS else field.default,
        )
        for field in fields(JobRequest)
        if field.name not in own.model_fields
    }
    rest = asked.keys() - {name for names in _SHOWN_BEFORE.values() for name in names}
    before = _SHOWN_BEFORE | {"recovery": tuple(name for name in asked if name in rest)}
    shown: dict[str, Any] = {}
    for name, info in own.model_fields.items():
        shown |= {other: asked[other] for other in before.get(name, ())}
        shown[name] = (
            Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation,
            info,
        )
    return create_model(
        own.__name__, __base__=View, __doc__=own.__doc__, __module__=own.__module__, **shown
    )


@_with_asked
class JobView(View):
    """One job. ``ranks`` and ``endpoints`` are in rank order, empty while pending."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a field of the request; it is shown as it was asked for."""

    name: Plain
    state: JobState
    reason: Message = ""
    """Why it is in this state: what a pending job waits for, how a failed one ended."""
    user: Plain = ""
    """Name of the token that submitted it; empty where that is not known."""
    time_limit_action: TimeLimitAction = TimeLimitAction.IGNORE
    image: Plain
    """As it was asked for."""
    image_digest: Plain = ""
    """What every rank of every start runs: NAME@sha256:... or an id. Empty until it is known."""
    command: list[Plain]
    env: dict[Plain, Plain]
    secrets: dict[Plain, Plain] = Field(default_factory=dict)
    """By variable: the name of the secret that is its value."""
    volumes: list[JobVolumeView] = Field(default_factory=list)
    record: Record = Record.COUNTS
    checkpoint: Annotated[CheckpointBody | None, Visibility.ALL] = None
    """How its checkpoints are kept, with every default filled in; null without any."""
    spares: list[Plain] = Field(default_factory=list)
    """Idle endpoints reserved for it now."""
    spares_asked: int = 0
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


ASKED = frozenset(JobRequest.__slots__) - {
    *("name", "image", "command", "env", "endpoints", "volumes", "checkpoint", "spares")
}
"""Fields of the request that the view shows unchanged."""


class NicView(View):
    """A container's data NIC as seen inside the container."""

    mtu: int
    rdma_device: Plain = ""
    gid_index: int | None = None
    """Of the RoCEv2 GID that maps its IPv4 address."""
    dscp: int | None = None


class GpuFiguresView(View):
    """What NVML reports of a container's GPU; null is not reported."""

    __annotations__ = reading_fields(of(Object.GPU))


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
