"""Messages between controller and agents about checkpoints; see protos/agent.proto. Pure.

Agents report what they hold; the controller orders what to keep, to fetch and to drop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Annotated

from agentlink.bounds import (
    NAME,
    TEXT_CHARS,
    EndpointName,
    Field,
    First,
    Most,
    ServerName,
    SpanOrNone,
    Text,
    at_most,
    cut,
    only,
    require,
)
from agentlink.parts import (
    MAX_MEMBERS,
    Digest,
    PartBytes,
    RankNumber,
    StepKey,
    digest_of_part,
    digest_or_empty,
    size_of_part,
    whole_set,
)
from agentlink.values import KeptWhere, VolumeMount
from checkpoints.ledger import Member
from checkpoints.manifest import MAX_LENGTH

MAX_KEEPS = 4096
"""Of one job on one server: a few steps of each of its ranks."""
MAX_GETS = 16_384
MAX_FAULTS = 1000
MAX_BATCH = 1000
"""Holdings in one message, which stays below gRPC's 4 MiB."""
_MAX_DAMAGES = 16
_DAMAGE_CHARS = 1100
"""A path and what is wrong with it."""


class HoldingKind(StrEnum):
    """What a server reports about a part of a step."""

    OWN = "own"
    COPY = "copy"
    PARITY = "parity"
    STORED = "stored"
    AWAITS = "awaits"
    """Whole once the coordinator closes the step (rule ``dcp``)."""
    MISSING = "missing"
    """No longer whole there: removed, damaged or never arrived."""
    REFUSED = "refused"
    """What the program writes cannot be trusted, or does not fit."""
    IGNORED = "ignored"
    """Not a part: ``why`` lists names that the program wrote and that are not steps by its rule;
    empty when none are left. Its key has the run's epoch and step 0."""


def _is_short(text: str) -> bool:
    return len(text) <= TEXT_CHARS


def _named_or_empty(text: str) -> str:
    return text if NAME.fullmatch(text) else ""


_any_size = partial(size_of_part, least=0)
_any_set = partial(whole_set, least=0)


@dataclass(slots=True, frozen=True, kw_only=True)
class Holding:
    """A server's report about one rank's part of one step. Reports are not trusted."""

    folder: str
    key: StepKey
    rank: RankNumber
    """The rank whose part it is; for a parity, the rank that keeps it."""
    endpoint: EndpointName
    kind: HoldingKind
    digest: Annotated[str, digest_or_empty] = ""
    bytes: Annotated[int, _any_size] = 0
    covers: Annotated[tuple[Member, ...], Most(MAX_MEMBERS, "members"), _any_set] = ()
    why: Annotated[str, only(_is_short, "too long")] = ""
    written_s: SpanOrNone | None = None
    """From the step's first file to its completion."""
    seen_at: float = 0.0
    """Seconds since 1970."""
    server: str = ""
    """The server that reports it; a server itself leaves it empty."""


@dataclass(slots=True, frozen=True)
class Folder:
    """A job's folders, as each of its servers gets their description."""

    name: Annotated[str, Field(name="folder")]
    key: bytes = field(repr=False)
    where: KeptWhere
    size_bytes: int


@dataclass(slots=True, frozen=True)
class Source:
    """Where another server has a part or a parity."""

    rank: RankNumber
    digest: str
    bytes: int
    endpoint: EndpointName
    server: ServerName
    address: str = ""
    """To keep: of the running rank, on the data network. To fetch: HOST:PORT of its agent."""


def part_source(source: Source) -> Source:
    """Return a source of a part. Raises Refused."""
    digest_of_part(source.digest)
    size_of_part(source.bytes)
    return source


def parity_source(source: Source) -> Source:
    """Return a source of a parity, whose digest and size may be unknown. Raises Refused."""
    digest_or_empty(source.digest)
    size_of_part(source.bytes, least=0)
    return source


def once_each(sources: Sequence[Source]) -> Sequence[Source]:
    """Return sources of different ranks. Raises Refused."""
    doubles = len({source.rank for source in sources}) < len(sources)
    require(not doubles, "a rank is named twice in one set")
    return sources


_Parts = Annotated[
    tuple[Annotated[Source, part_source], ...], Most(MAX_MEMBERS, "members"), once_each
]
_Parities = Annotated[
    tuple[Annotated[Source, parity_source], ...], Most(MAX_MEMBERS, "members"), once_each
]


@dataclass(slots=True, frozen=True)
class KeepCopy:
    """A copy of another rank's part, kept beside ``rank``."""

    rank: RankNumber
    key: StepKey
    source: Annotated[Source, Field(name="copy"), part_source]


@dataclass(slots=True, frozen=True)
class KeepParity:
    """The parity that ``rank`` keeps of its set; ``members`` in the order of its ring."""

    rank: RankNumber
    key: StepKey
    members: Annotated[_Parts, Field(name="parity.members")]


@dataclass(slots=True, frozen=True)
class KeepStored:
    """The part of ``rank``, written to a store."""

    rank: RankNumber
    key: StepKey
    store: VolumeMount


Keep = KeepCopy | KeepParity | KeepStored


@dataclass(slots=True, frozen=True)
class Keeps:
    """All that a server is to keep of a job now; ``pace_bps`` limits each transfer, 0 does not."""

    folder: str
    keeps: Annotated[
        tuple[Annotated[Keep, Field(missing="a keep says nothing to keep")], ...],
        Most(MAX_KEEPS, "copies, parities and writes"),
    ]
    pace_bps: int = 0


@dataclass(slots=True, frozen=True)
class GetLocal:
    """The server has the part, in the folder of ``endpoint``."""

    endpoint: Annotated[EndpointName, Field(name="local")]


@dataclass(slots=True, frozen=True)
class GetFrom:
    """Another server has the part; it comes over the management network."""

    source: Annotated[Source, Field(name="from"), part_source]


@dataclass(slots=True, frozen=True)
class GetRebuilt:
    """The part is rebuilt from the other members of its set."""

    covers: Annotated[
        tuple[Member, ...], Field(name="rebuild.covers"), Most(MAX_MEMBERS, "members"), whole_set
    ]
    parts: Annotated[_Parts, Field(name="rebuild.parts")]
    parities: Annotated[_Parities, Field(name="rebuild.parities")]


@dataclass(slots=True, frozen=True)
class GetStored:
    """A store has the part."""

    store: VolumeMount


@dataclass(slots=True, frozen=True)
class GetPart:
    """One part that ``rank`` needs before it starts on ``endpoint``."""

    rank: RankNumber
    endpoint: EndpointName
    part: RankNumber
    """The part to get: another rank's where replicas are identical or parts are shared."""
    digest: Digest
    bytes: PartBytes
    how: Annotated[
        GetLocal | GetFrom | GetRebuilt | GetStored, Field(missing="a part is fetched from nowhere")
    ]


@dataclass(slots=True, frozen=True)
class Gets:
    """The parts of one step that a server is to fetch."""

    gets: Annotated[tuple[GetPart, ...], Most(MAX_GETS, "parts")]
    key: StepKey


@dataclass(slots=True, frozen=True)
class FetchFault:
    """A part that could not be had, and the endpoint that did not have it whole."""

    rank: RankNumber
    part: RankNumber
    endpoint: Annotated[str, _named_or_empty]
    """Empty when no one endpoint is to blame."""
    message: Text


@dataclass(slots=True, frozen=True)
class FetchProgress:
    """How far a fetch is. The last one has ``done``; with ``faults`` parts are missing."""

    bytes_done: Annotated[int, at_most(MAX_LENGTH)] = 0
    bytes_total: Annotated[int, at_most(MAX_LENGTH)] = 0
    done: bool = False
    faults: Annotated[tuple[FetchFault, ...], First(MAX_FAULTS)] = ()


@dataclass(slots=True, frozen=True)
class Verified:
    """A part, copy or parity that was read again."""

    key: StepKey
    rank: RankNumber
    endpoint: EndpointName
    kind: HoldingKind
    damages: Annotated[tuple[Annotated[str, cut(_DAMAGE_CHARS)], ...], First(_MAX_DAMAGES)] = ()
    """``PATH: missing``, ``length``, ``content`` or ``extra``; empty when it is as written."""
    server: str = ""
    """Who read it; a server itself leaves it empty."""
