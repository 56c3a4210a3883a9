"""The values of a regroup transaction: its state and the events it handles.

Everything is frozen. ``step`` numbers every phase entry: an instruction carries it, the event
that answers it returns it, and an event of an older step is stale and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from controller.devices.aggregators import AttachPoint
from controller.transaction.circuits import End, SwitchChange, endpoint_of
from scheduler.model import Policy


class Phase(StrEnum):
    """Where a transaction stands; the order is the order of the values."""

    ADMIT = "admit"
    QUIESCE = "quiesce"
    DRAIN = "drain"
    SWITCH = "switch"
    QUALIFY = "qualify"
    ROUTE = "route"
    RESUME = "resume"
    COMMIT = "commit"
    DONE = "done"


class Cause(StrEnum):
    """Why light moves."""

    REGROUP = "regroup"
    PLACEMENT = "placement"
    HOMES = "homes"
    ATTACH = "attach"
    SPARE = "spare"
    """A stopped job's dead endpoints go dark and spares take their ports."""


class Outcome(StrEnum):
    """How a transaction ended."""

    COMMITTED = "committed"
    """Every path of the new epoch is proven."""
    ROLLED_BACK = "rolled_back"
    """Every path is as it was before."""
    QUARANTINED = "quarantined"
    """Some endpoint has neither its new nor its old path; it is dark and out of use."""


Key = str | End
"""What a phase waits for: the name of a job or switch, a key of ``phases``, or an end."""


@dataclass(slots=True, frozen=True)
class Path:
    """What one end leads to before and after; None is dark."""

    end: End
    before: AttachPoint | None
    after: AttachPoint | None

    @property
    def endpoint(self) -> str:
        """The endpoint that moves; empty for an uplink."""
        return endpoint_of(self.end)


@dataclass(slots=True, frozen=True)
class HeldJob:
    """A job that owns moving endpoints. ``endpoints`` are all of the job's, in rank order."""

    name: str
    policy: Policy
    endpoints: tuple[str, ...]
    checkpoint_s: float | None = None
    """Longest time its checkpoint takes; None requires no proof that it was written."""


@dataclass(slots=True, frozen=True)
class PhaseTime:
    """When a phase began; it ends where the next one begins."""

    phase: Phase
    back: bool
    at: float


@dataclass(slots=True, frozen=True)
class Transaction:
    """The state of a transaction. Only ``machine.handle`` advances it."""

    id: str
    cause: Cause
    epoch: int
    """Epoch of the intent the transaction starts from."""
    paths: tuple[Path, ...]
    changes: tuple[SwitchChange, ...]
    jobs: tuple[HeldJob, ...] = ()
    phase: Phase = Phase.ADMIT
    back: bool = False
    """The transaction is going back to the old paths."""
    step: int = 0
    attempt: int = 0
    """Repetitions of the present phase."""
    waiting: frozenset[Key] = frozenset()
    """What has not answered yet."""
    abort: bool = False
    """An operator asked to stop; honoured at the next moment that can be rolled back."""
    quiesced: tuple[str, ...] = ()
    """Jobs that were told to freeze or stop, and must be resumed."""
    settled: frozenset[str] = frozenset()
    """Frozen jobs with nothing in flight."""
    drained: bool = False
    cut: bool = False
    """Light may have been touched."""
    broken_at: Mapping[End, float] = field(default_factory=dict)
    whole_at: Mapping[End, float] = field(default_factory=dict)
    """When the path of each end was proven, after the switch."""
    failed: frozenset[Key] = frozenset()
    """What failed in the present phase."""
    away: frozenset[str] = frozenset()
    """Switches that did not answer in the present phase."""
    unclear: frozenset[End] = frozenset()
    """Ends whose path could not be checked in the present phase."""
    suspects: tuple[AttachPoint, ...] = ()
    """Aggregator ports whose new path did not qualify."""
    lost: tuple[End, ...] = ()
    """Ends that have neither their new nor their old path."""
    stuck_jobs: tuple[str, ...] = ()
    """Jobs that did not resume."""
    reasons: tuple[str, ...] = ()
    phases: tuple[PhaseTime, ...] = ()
    outcome: Outcome | None = None
    link_up_s: float = 0.0
    """How long its slowest link may need from light to carrier."""

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Endpoints that move."""
        return tuple(path.endpoint for path in self.paths if path.endpoint)

    @property
    def target(self) -> Mapping[End, AttachPoint | None]:
        """What the moving ends lead to, given what is known now; None is dark."""
        lost = set(self.lost)
        return {
            p.end: None if p.end in lost else (p.before if self.back else p.after)
            for p in self.paths
        }

    @property
    def proving(self) -> Mapping[End, AttachPoint]:
        """Ends whose path must be proven where they lead to now.

        One that a job lost is not: nothing would answer at its old place either.
        """
        gone = {p.end for p in self.paths if p.after is None}
        left = gone if self.back and self.cause is Cause.SPARE else set()
        return {end: point for end, point in self.target.items() if point and end not in left}

    @property
    def quarantine(self) -> tuple[AttachPoint, ...]:
        """Ports to put out of use: their new path failed while the endpoint's old one works."""
        if not self.back:
            return ()
        unclear = {p.after for p in self.paths if p.end in self.lost}
        return tuple(dict.fromkeys(port for port in self.suspects if port not in unclear))

    @property
    def ending(self) -> Outcome:
        """The outcome that the state so far implies."""
        if not self.back:
            return Outcome.COMMITTED
        return Outcome.QUARANTINED if self.lost else Outcome.ROLLED_BACK

    @property
    def still(self) -> frozenset[str]:
        """Jobs that it has frozen or stopped, until they have answered that they run again."""
        if self.phase in (Phase.COMMIT, Phase.DONE):
            return frozenset()
        quiesced = frozenset(self.quiesced)
        return quiesced & self.waiting if self.phase is Phase.RESUME else quiesced

    @property
    def dark_time_s(self) -> Mapping[End, float]:
        """Per end: first pair broken to last path qualified; absent while it is dark."""
        return {
            end: self.whole_at[end] - began
            for end, began in self.broken_at.items()
            if end in self.whole_at
        }


# --- events -------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Written:
    """The intent log has the entry."""

    step: int


@dataclass(slots=True, frozen=True)
class NotWritten:
    """The intent log does not have the entry."""

    step: int
    reason: str


@dataclass(slots=True, frozen=True)
class Lull:
    """The job pauses to compute, or the wait for that is over."""

    step: int


@dataclass(slots=True, frozen=True)
class JobQuiesced:
    """All containers of the job are frozen (or stopped).

    ``settled``: everything they sent was seen to be acknowledged, so nothing is in flight.
    """

    step: int
    job: str
    settled: bool = False


@dataclass(slots=True, frozen=True)
class JobNotQuiesced:
    """Some containers of the job may still run."""

    step: int
    job: str
    reason: str


@dataclass(slots=True, frozen=True)
class Quiet:
    """The counters have stopped changing, or the wait for that is over."""

    step: int


@dataclass(slots=True, frozen=True)
class Drained:
    """The aggregators hold the traffic of the moving endpoints."""

    step: int


@dataclass(slots=True, frozen=True)
class NotDrained:
    """Some aggregator does not hold it."""

    step: int
    reason: str


@dataclass(slots=True, frozen=True)
class Switched:
    """The map, read back, matches the request. ``broken_at`` is None when nothing was deleted."""

    step: int
    switch: str
    broken_at: float | None = None


@dataclass(slots=True, frozen=True)
class NotSwitched:
    """The map differs from the request, or is unknown. ``suspects`` were refused by the device.

    ``away``: the switch does not answer at all, so it may still carry what was requested.
    """

    step: int
    switch: str
    reason: str
    broken_at: float | None = None
    suspects: tuple[AttachPoint, ...] = ()
    away: bool = False


@dataclass(slots=True, frozen=True)
class Qualified:
    """The path of this end is proven."""

    step: int
    end: End
    at: float


@dataclass(slots=True, frozen=True)
class AllQualified:
    """Several paths are proven, each at its time: one ``Qualified`` for each."""

    step: int
    at: Mapping[End, float]


@dataclass(slots=True, frozen=True)
class NotQualified:
    """The path of this end carries nothing; without ``blame`` it could not be checked."""

    step: int
    end: End
    reason: str
    blame: bool = True


@dataclass(slots=True, frozen=True)
class Routed:
    """Every aggregator has the flows of ``Transaction.target``."""

    step: int


@dataclass(slots=True, frozen=True)
class NotRouted:
    """Some aggregator does not have them; it gets them when it reconnects."""

    step: int
    reason: str


@dataclass(slots=True, frozen=True)
class JobResumed:
    """The job runs again."""

    step: int
    job: str


@dataclass(slots=True, frozen=True)
class JobNotResumed:
    """The job does not run."""

    step: int
    job: str
    reason: str


@dataclass(slots=True, frozen=True)
class DeadlinePassed:
    """The step exceeded its budget: everything that has not answered has failed."""

    step: int


@dataclass(slots=True, frozen=True)
class AbortAsked:
    """An operator wants the transaction rolled back."""

    who: str = "operator"


Event = (
    Written
    | NotWritten
    | Lull
    | JobQuiesced
    | JobNotQuiesced
    | Quiet
    | Drained
    | NotDrained
    | Switched
    | NotSwitched
    | Qualified
    | AllQualified
    | NotQualified
    | Routed
    | NotRouted
    | JobResumed
    | JobNotResumed
    | DeadlinePassed
    | AbortAsked
)
