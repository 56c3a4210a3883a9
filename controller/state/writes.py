"""The writes to the store, and what is read from it at start. Values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from controller.devices.aggregators import AttachPoint
from controller.state.kept.measurements import MeasurementRecord
from controller.state.kinds.forms import AsList, JsonForm
from controller.state.kinds.kind import Kind
from controller.state.records import Event, JobRecord, TransactionRecord
from controller.transaction.circuits import End, end_of
from controller.usage.interval import UsageInterval


@dataclass(slots=True, frozen=True)
class PutFacts:
    """Set named facts (``epoch``, ``site``)."""

    facts: Mapping[str, str]


@dataclass(slots=True, frozen=True)
class PutJob:
    """Insert or replace a job and the endpoints it owns now."""

    job: JobRecord


@dataclass(slots=True, frozen=True)
class DropJobs:
    """Forget jobs that ended."""

    names: Sequence[str]


@dataclass(slots=True, frozen=True)
class PutAttachments:
    """Replace the whole intent: where lit endpoints are attached, the uplinks, and since when."""

    attachments: Mapping[str, AttachPoint]
    uplinks: Mapping[AttachPoint, AttachPoint]
    epoch: int


@dataclass(slots=True, frozen=True)
class ReservedRoom:
    """Endpoints that a transaction frees for a waiting job, which no other one gets meanwhile."""

    job: str
    endpoints: frozenset[str]


NearEnd = Annotated[End, JsonForm(str, end_of)]


@dataclass(slots=True, frozen=True)
class Intent:
    """What recovery needs of an unfinished transaction: both ends and the point of no return."""

    before: Mapping[NearEnd, Annotated[AttachPoint, AsList()] | None]
    after: Mapping[NearEnd, Annotated[AttachPoint, AsList()] | None]
    proven: bool
    """All new paths were proven: a crash converges to ``after``, else to ``before``."""
    quiesced_jobs: tuple[str, ...]
    room: Annotated[ReservedRoom, AsList()] | None = None


@dataclass(slots=True, frozen=True)
class PutTransaction:
    """Insert or replace one entry of the intent log."""

    record: TransactionRecord
    intent: Intent


@dataclass(slots=True, frozen=True)
class PutEvents:
    """Append events, and forget others."""

    events: Sequence[Event]
    gone: Sequence[int] = ()
    """Ids of those to forget."""


@dataclass(slots=True, frozen=True)
class PutUsage:
    """Insert or replace intervals of the usage ledger."""

    intervals: Sequence[UsageInterval]


@dataclass(slots=True, frozen=True)
class TrimUsage:
    """Sum up by day the intervals that are too old or too many; forget the oldest days."""

    now: float
    """In seconds since 1970."""


CALLER_CHARS = 16
"""Of an answer's id, the first ones."""


@dataclass(slots=True, frozen=True)
class KeptAnswer:
    """The outcome of a change with an ``Idempotency-Key``."""

    id: str
    """Digest of caller and key; it begins with ``CALLER_CHARS`` that are the caller's alone."""
    print: str
    """Digest of the request."""
    at: float
    """When the request arrived, in seconds since 1970."""
    status: int | None = None
    """None until it was answered."""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    """None when it is too long to keep, or secret."""


@dataclass(slots=True, frozen=True)
class PutAnswer:
    """Insert or replace the outcome of one change, and forget outcomes beyond the bounds.

    Those are the oldest of the caller who has most: no caller displaces another one's.
    """

    answer: KeptAnswer
    oldest: float
    """Answers from before this are forgotten; in seconds since 1970."""
    most: int
    """Maximum number kept."""
    most_bytes: int
    """Maximum total size kept."""


@dataclass(slots=True, frozen=True)
class DropAnswer:
    """Forget one change: it was not carried out."""

    id: str


@dataclass(slots=True, frozen=True)
class PutRecords:
    """Insert or replace records of one kind."""

    kind: Kind[Any]
    records: Sequence[Any]


@dataclass(slots=True, frozen=True)
class DropRecords:
    """Forget records of one kind."""

    kind: Kind[Any]
    keys: Sequence[str]


@dataclass(slots=True, frozen=True)
class PutMeasurement:
    """Insert or replace a measurement; with ``result`` None the row keeps the one that it has."""

    record: MeasurementRecord
    result: str | None = None
    """JSON."""


@dataclass(slots=True, frozen=True)
class DropMeasurements:
    """Forget measurements and their results."""

    ids: Sequence[str]


Write = (
    PutFacts
    | PutJob
    | DropJobs
    | PutAttachments
    | PutTransaction
    | PutEvents
    | PutUsage
    | TrimUsage
    | PutAnswer
    | DropAnswer
    | PutRecords
    | DropRecords
    | PutMeasurement
    | DropMeasurements
)

Body = PutTransaction | PutAnswer | DropAnswer | PutUsage | TrimUsage | PutFacts
"""Writes that no record of memory stands behind; of facts, those that memory does not hold."""


@dataclass(slots=True, frozen=True)
class Loaded:
    """Everything the store holds, at start."""

    facts: Mapping[str, str]
    jobs: tuple[JobRecord, ...]
    """In the order of submission."""
    attachments: Mapping[str, AttachPoint]
    uplinks: Mapping[AttachPoint, AttachPoint]
    transactions: tuple[tuple[TransactionRecord, Intent], ...]
    """The latest ones and every unfinished one, oldest first."""
    events: tuple[Event, ...]
    usage: tuple[UsageInterval, ...]
    """The intervals of the usage ledger that go on."""
    last_usage: int
    """The highest id of an interval; 0 without any."""
    placed_at: int = 0
    """The latest epoch in which a circuit came where it is; 0 without any."""
    measurements: tuple[MeasurementRecord, ...] = ()
    records: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Those that are kept one row each, by the name of their kind, in its order."""
