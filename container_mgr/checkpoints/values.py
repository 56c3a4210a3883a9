"""The agent's values about checkpoints; protos/agent.proto explains them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from checkpoints.ledger import Key, Member
from checkpoints.manifest import Manifest
from container_mgr.values import VolumeMount, Where


class Kind(StrEnum):
    """What is held, or why it is not."""

    OWN = "own"
    COPY = "copy"
    PARITY = "parity"
    STORED = "stored"
    AWAITS = "awaits"
    MISSING = "missing"
    REFUSED = "refused"
    IGNORED = "ignored"
    """No part: names in a rank's folder that are no steps, at step 0 of the rank's run."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Holding:
    """One rank's part of one step on this server."""

    folder: str
    key: Key
    rank: int
    """Whose part; with a parity, who keeps it."""
    endpoint: str
    kind: Kind
    digest: str = ""
    bytes: int = 0
    covers: tuple[Member, ...] = ()
    why: str = ""
    written_s: float | None = None
    seen_at: float = 0.0


@dataclass(slots=True, frozen=True)
class Folder:
    """A job's folders: what this server must know to keep them."""

    name: str
    key: bytes = field(repr=False)
    where: Where
    size_bytes: int


@dataclass(slots=True, frozen=True)
class Place:
    """Where a part or parity lies on this server: in the folder of a rank's endpoint."""

    folder: str
    endpoint: str
    kind: Kind
    rank: int
    """Whose part; with a parity, who keeps it."""
    key: Key


@dataclass(slots=True, frozen=True)
class Part:
    """A whole part (or parity) on this server."""

    place: Place
    root: Path
    """Directory with its files, never with links."""
    manifest: Manifest
    """Of a parity: of the one file ``parity``."""
    covers: tuple[Member, ...] = ()
    """Of a parity: its set in the order of the ring."""
    manifests: tuple[Manifest, ...] = ()
    """Of a parity: those of all members' parts, so that a lost one can be cut into its files."""


@dataclass(slots=True, frozen=True)
class Source:
    """Where another server has a part or a parity."""

    rank: int
    digest: str
    bytes: int
    endpoint: str
    server: str
    address: str


@dataclass(slots=True, frozen=True)
class KeepCopy:
    """A copy of another rank's part, kept beside ``rank``."""

    rank: int
    key: Key
    source: Source


@dataclass(slots=True, frozen=True)
class KeepParity:
    """The parity that ``rank`` keeps of its set; ``members`` in the order of its ring."""

    rank: int
    key: Key
    members: tuple[Source, ...]


@dataclass(slots=True, frozen=True)
class KeepStored:
    """The part of ``rank``, written to a store."""

    rank: int
    key: Key
    store: VolumeMount


Keep = KeepCopy | KeepParity | KeepStored


@dataclass(slots=True, frozen=True)
class GetLocal:
    """This server has the part, in the folder of ``endpoint``."""

    endpoint: str


@dataclass(slots=True, frozen=True)
class GetFrom:
    """Another server has the part."""

    source: Source


@dataclass(slots=True, frozen=True)
class GetRebuilt:
    """The part is rebuilt from the other members of its set."""

    covers: tuple[Member, ...]
    parts: tuple[Source, ...]
    parities: tuple[Source, ...]


@dataclass(slots=True, frozen=True)
class GetStored:
    """A store has the part."""

    store: VolumeMount


@dataclass(slots=True, frozen=True)
class Get:
    """One part for one rank that will start here."""

    rank: int
    endpoint: str
    part: int
    digest: str
    bytes: int
    how: GetLocal | GetFrom | GetRebuilt | GetStored


@dataclass(slots=True, frozen=True)
class FetchFault:
    """A part that could not be had, and the endpoint that did not have it whole."""

    rank: int
    part: int
    endpoint: str
    message: str


@dataclass(slots=True, frozen=True)
class FetchProgress:
    """How far a fetch is; the last one has ``done``."""

    bytes_done: int = 0
    bytes_total: int = 0
    done: bool = False
    faults: tuple[FetchFault, ...] = ()


@dataclass(slots=True, frozen=True)
class Verified:
    """A part that was read again; ``damages`` is empty when it is as written."""

    key: Key
    rank: int
    endpoint: str
    kind: Kind
    damages: tuple[str, ...] = ()
