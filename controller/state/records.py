"""The frozen records of the controller's state: the store keeps and the service replaces them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from agentlink.values import Record
from checkpoints.values import Scheme
from controller.devices.observed import Turn
from controller.schema.base import JobState, Severity
from controller.schema.submit.request import (
    CheckpointCopies,
    CheckpointRequest,
    JobRequest,
    Replicas,
    VolumeRequest,
)
from controller.state.kinds.forms import JsonForm
from controller.state.kinds.kind import Kind
from scheduler.model import TimeLimitAction

TransactionState = Literal["running", "rolling_back", "committed", "rolled_back", "quarantined"]

ENDED: frozenset[JobState] = frozenset({"completed", "failed", "cancelled"})
"""States a job never leaves."""

HOLDING: frozenset[JobState] = frozenset({"starting", "running", "pausing", "paused"})
"""States in which a job owns its endpoints."""

LIMIT_GRACE_S = 30.0
"""Between SIGTERM and SIGKILL at a job's time limit, unless it states its checkpoint's time."""


@dataclass(slots=True, frozen=True)
class JobVolume(VolumeRequest):
    """A volume of the site file that a job uses, and where in its containers it appears."""

    read_only: bool


@dataclass(slots=True, frozen=True, kw_only=True)
class CopiesSpec(CheckpointCopies):
    """How parts survive; the scheme is chosen."""

    scheme: Scheme = Scheme.SINGLE


@dataclass(slots=True, frozen=True, kw_only=True)
class CheckpointSpec(CheckpointRequest):
    """How a job's checkpoints are kept."""

    copies: CopiesSpec = CopiesSpec()

    @property
    def store(self) -> str:
        """A volume of the site file; empty without a store."""
        return self.shared.store if self.shared else ""

    @property
    def every(self) -> int:
        """Complete steps from one that goes to the store to the next; 0 without a store."""
        return self.shared.every if self.shared else 0

    @property
    def identical(self) -> bool:
        """Any rank's part is the whole state."""
        return self.replicas is Replicas.IDENTICAL


def _flat(spec: CheckpointSpec) -> dict[str, Any]:
    parts = {"local", "copies", "shared", "replicas"}
    own = {name: getattr(spec, name) for name in CheckpointRequest.__slots__ if name not in parts}
    own |= asdict(spec.local) | asdict(spec.copies)
    own |= asdict(spec.shared) if spec.shared else {"store": "", "every": 0}
    return own | {"identical": spec.identical}


def _nested(kept: Any) -> Any:
    if not isinstance(kept, dict):
        return kept
    shared = {"shared": {"every": 0, **kept}} if kept.get("store") else {}
    replicas = Replicas.IDENTICAL if kept.get("identical") else Replicas.DISTINCT
    return {**kept, "local": kept, "copies": kept, **shared, "replicas": replicas}


FLAT = JsonForm(_flat, _nested)
"""The fields of a checkpoint's parts stand side by side, as in the first version's documents."""


@dataclass(slots=True, frozen=True, kw_only=True)
class JobSpec(JobRequest):
    """What a job asks for, as it was admitted: nothing is left open."""

    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    endpoints: tuple[str, ...] = ()
    volumes: tuple[JobVolume, ...] = ()
    time_limit_action: TimeLimitAction = TimeLimitAction.IGNORE
    secrets: Mapping[str, str] = field(default_factory=dict)
    """By variable: the name of the secret that is its value, never the value."""
    record: Record = Record.OFF
    probe: bool = False
    """It is a job of a measurement: its containers see the package ``probe``."""
    checkpoint: Annotated[CheckpointSpec, FLAT] | None = None

    @property
    def limit_grace_s(self) -> float:
        """Seconds that its ranks have to end by themselves after its time limit."""
        return self.checkpoint_grace_s or LIMIT_GRACE_S

    @property
    def longest_run_s(self) -> float | None:
        """Seconds after which it has left its endpoints, as far as the limit says; None without.

        A bound when the limit ends the job, an estimate otherwise.
        """
        if self.time_limit_s is None or self.time_limit_action is TimeLimitAction.IGNORE:
            return self.time_limit_s
        return self.time_limit_s + self.limit_grace_s


@dataclass(slots=True, frozen=True, kw_only=True)
class Failure:
    """Why a run of a job failed: the rank that failed first, and what ended the others."""

    rank: int
    endpoint: str
    epoch: int
    exit_code: int | None = None
    signal: str = ""
    """``SIGSEGV`` if a signal ended it."""
    oom: bool = False
    cause: str
    others: str = ""
    """Empty if the job has one rank only."""
    lines: tuple[str, ...] = ()
    """The last lines of the rank's output, as the program wrote them; bounded."""
    unread: str = ""
    """Why its output could not be read; empty if it was."""
    fault: str = ""
    """What was wrong with its GPU while it ran: ``lost``, ``xid`` or ``hang``."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Observed:
    """What another engine reports of a job that it owns; texts are clipped."""

    engine: str
    key: str
    """``slurm:4711``."""
    attempt: int = 0
    revision: str
    turn: Turn
    title: str = ""
    """What its owner calls it."""
    scope: str = ""
    """Names its processes to the agents; empty when they cannot be frozen."""
    servers: int = 0
    """Nodes that it asks for."""
    leaves: int = 0
    """Most aggregators that it accepts; 0 says nothing."""
    curable: bool = False
    """It waits for something that light may change."""
    ahead: int = 0
    """Its position in the engine's queue."""
    problems: tuple[str, ...] = ()
    """What of it is not understood: wishes, nodes that the site file does not map."""
    answered: str = ""
    """What was done for its light when it got its endpoints, as reported to its owner."""

    @property
    def number(self) -> str:
        """The engine's own number of the job."""
        return self.key.partition(":")[2]


@dataclass(slots=True, frozen=True, kw_only=True)
class Owner:
    """Who owns a job, and what of it lightloom does: another engine does the rest itself."""

    engine: str = ""
    """``slurm``; empty for lightloom's own queue."""
    number: str = ""
    """The engine's own number of the job."""
    starts: bool = False
    """Whether lightloom places and starts it, and starts it elsewhere after a loss."""
    stops: bool = False
    """Whether lightloom stops it: on request, and to take what it uses out of use."""
    judges: bool = False
    """Whether lightloom decides from its ranks' containers how it stands, and that it has ended."""
    scope: str | None = None
    """By which agents freeze its processes; empty when none can, None for ranks in containers."""


QUEUE = Owner(starts=True, stops=True, judges=True)
"""lightloom's own queue."""


@dataclass(slots=True, frozen=True)
class JobRecord:
    """One job; ``endpoints`` in rank order, empty while it is pending."""

    name: str
    request: JobSpec
    image: str
    submitted_at: float
    state: JobState = "pending"
    reason: str = ""
    endpoints: tuple[str, ...] = ()
    epoch: int = 0
    """Epoch in its containers' names."""
    restarts: int = 0
    failures: int = 0
    """Failures of ranks that its restart policy handled."""
    started_at: float | None = None
    finished_at: float | None = None
    exit_codes: tuple[int | None, ...] = ()
    dark_time_s: Mapping[str, float] = field(default_factory=dict)
    """Per endpoint, over all regroups."""
    final_homes: tuple[str | None, ...] = ()
    """Where the endpoints were when the job ended, in rank order; empty before."""
    reserved_at: float | None = None
    """Since when it has been first in the queue; None when it never was."""
    could_start_at: float | None = None
    """Since when it waits only for endpoints that a regroup can bring closer together."""
    pauses: Mapping[str, float] = field(default_factory=dict)
    """When its light was moved, by transaction; only the latest."""
    failure: Failure | None = None
    """Of its latest run that failed; None once the job completed or was cancelled."""
    image_digest: str = ""
    """What its image's name meant at submit: NAME@sha256:... or an id. Every rank of every start
    runs it. Empty until a server has answered."""
    user: str = ""
    """Name of the token that submitted it; empty for a job from before names were kept."""
    spares: tuple[str, ...] = ()
    """Idle endpoints reserved for it while it holds its own."""
    folder: str = ""
    """Names its checkpoints' folders on every server; never used twice. Empty without any."""
    observed: Observed | None = None
    """Of a job that another engine owns."""

    @property
    def owner(self) -> Owner:
        """Who owns the job."""
        told = self.observed
        if told is None:
            return QUEUE
        return Owner(engine=told.engine, number=told.number, scope=told.scope)

    @property
    def holding(self) -> bool:
        """True while the job owns its endpoints."""
        return self.state in HOLDING

    @property
    def ended(self) -> bool:
        """True when the job never runs again."""
        return self.state in ENDED


@dataclass(slots=True, frozen=True)
class Event:
    """An event for users; ``id`` increases by one and is never used twice."""

    id: int
    time: float
    severity: Severity
    object: str
    reason: str
    message: str
    epoch: int


@dataclass(slots=True, frozen=True)
class Notice:
    """What a receiver of the site file gets about a job's end."""

    id: str
    receiver: str
    """Identifies the receiver; the site file has its address."""
    job: str
    body: str
    """The job's facts as JSON."""
    created_at: float


NOTICES = Kind(
    "notices",
    Notice,
    key="id",
    order="created_at",
    columns=("receiver", "job", "body", "created_at"),
    document=False,
)


@dataclass(slots=True, frozen=True)
class Quarantine:
    """A port (``as0/3``) or an endpoint (``gpu2``) that must not be used, and why."""

    object: str
    reason: str
    since: float


QUARANTINE = Kind(
    "quarantine",
    Quarantine,
    key="object",
    order="object",
    columns=("reason", "since"),
    document=False,
)


@dataclass(slots=True, frozen=True)
class MoveRecord:
    """One endpoint's change of home; None is dark."""

    endpoint: str
    source: str | None
    target: str | None


@dataclass(slots=True, frozen=True)
class PhaseRecord:
    """When a transaction entered a phase and left it, in seconds since 1970."""

    name: str
    started_at: float
    finished_at: float | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class TransactionRecord:
    """A transaction as the log keeps it: under way, or how it ended."""

    id: str
    state: TransactionState
    phase: str
    phases: tuple[PhaseRecord, ...]
    cause: Literal["regroup", "placement", "homes", "attach", "spare"]
    plan_id: str | None = None
    epoch_before: int
    epoch_after: int | None = None
    moves: tuple[MoveRecord, ...]
    jobs: tuple[str, ...]
    """Jobs whose endpoints move."""
    dark_time_s: Mapping[str, float]
    """Per moved endpoint: first pair broken to last path qualified."""
    started_at: float
    finished_at: float | None = None
    result: str = ""
    """One sentence on how it ended; empty while it runs."""
    error: str = ""
    quarantined_ports: tuple[str, ...] = ()
