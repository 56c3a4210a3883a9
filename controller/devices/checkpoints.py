"""What an execution engine can do with jobs' checkpoints: the contract, apart from the ranks' own.

Servers hold parts, copies and parities, and tell of them; the controller says what to keep, fetch
and drop. The implementation built in is :class:`controller.devices.agents.engine.AgentEngine`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from checkpoints.ledger import Key, Member
from controller.devices.engine import VolumeMount, Where


class HoldingKind(StrEnum):
    """What a server says about a part of a step."""

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
    """No part: ``why`` lists names that the program wrote and that are no steps by its rule; empty
    when there are none any more. Its key has the run's epoch and step 0."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Holding:
    """What a server says about one rank's part of one step. The server's word: it may lie."""

    server: str
    folder: str
    key: Key
    rank: int
    """Whose part; with a parity, who keeps it."""
    endpoint: str
    """One of the server's own; others are not passed on."""
    kind: HoldingKind
    digest: str = ""
    bytes: int = 0
    covers: tuple[Member, ...] = ()
    why: str = ""
    written_s: float | None = None
    """From the step's first file to its completion."""
    seen_at: float = 0.0
    """Seconds since 1970."""


@dataclass(slots=True, frozen=True)
class HoldingsNews:
    """News of one server. Holdings may repeat."""

    server: str
    holdings: tuple[Holding, ...] = ()
    began: bool = False
    """The server tells everything anew: what it told before no longer counts."""
    caught_up: bool = False
    """Everything that it held when it began has been told."""
    boot_id: str = ""
    """With ``began``: changes with every start of the server's machine."""


@dataclass(slots=True, frozen=True)
class Source:
    """Where a part or a parity can be had."""

    rank: int
    digest: str
    bytes: int
    endpoint: str
    server: str
    ip: str = ""
    """Address of the running rank, for transfers over the data network."""


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
    """The server has the part, in the folder of ``endpoint``."""

    endpoint: str


@dataclass(slots=True, frozen=True)
class GetFrom:
    """Another server has the part; it comes over the management network."""

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
class GetPart:
    """One part that ``rank`` needs before it starts on ``endpoint``."""

    rank: int
    endpoint: str
    part: int
    """Whose part: another rank's where replicas are identical or parts are shared."""
    digest: str
    bytes: int
    how: GetLocal | GetFrom | GetRebuilt | GetStored


@dataclass(slots=True, frozen=True)
class Folder:
    """A job's folders, as every server that gets one must know them."""

    name: str
    key: bytes
    where: Where
    size_bytes: int

    def __repr__(self) -> str:
        """Leave out the key."""
        return f"Folder({self.name!r})"


@dataclass(slots=True, frozen=True)
class FetchFault:
    """A part that could not be had, and the endpoint that did not have it whole."""

    rank: int
    part: int
    endpoint: str
    """Empty when no one endpoint is to blame."""
    message: str


@dataclass(slots=True, frozen=True)
class FetchProgress:
    """How far a fetch is. The last one has ``done``; with ``faults`` parts are missing."""

    bytes_done: int = 0
    bytes_total: int = 0
    done: bool = False
    faults: tuple[FetchFault, ...] = ()


@dataclass(slots=True, frozen=True)
class Verified:
    """A part, copy or parity that was read again."""

    server: str
    key: Key
    rank: int
    endpoint: str
    kind: HoldingKind
    damages: tuple[str, ...] = ()
    """``PATH: missing``, ``length``, ``content`` or ``extra``; empty when it is as written."""


class CheckpointEngine(Protocol):
    """Keeps, fetches and drops parts of checkpoints on servers. Every call is idempotent.

    Calls raise EngineError; one without an answer is repeated, never taken for done.
    """

    def holdings(self) -> AsyncIterator[HoldingsNews]:
        """Tell what all servers hold, each first everything, then changes, until closed.

        A server that was away begins anew when it is back. What it says of other servers'
        endpoints is dropped.
        """
        ...

    async def keep(
        self, server: str, folder: str, keeps: Sequence[Keep], pace_bps: int, deadline_s: float
    ) -> None:
        """Say which copies and parities a server is to make now, and what to write to a store.

        Returns when they are queued; ``holdings`` tells what became of them. ``pace_bps`` limits
        each transfer in bits per second; 0 is no limit. An empty ``keeps`` ends what is queued.
        """
        ...

    async def close_step(self, server: str, folder: str, key: Key, deadline_s: float) -> None:
        """Sum a step that awaited its coordinator (rule ``dcp``)."""
        ...

    def fetch(
        self, server: str, folder: Folder, key: Key, gets: Sequence[GetPart], deadline_s: float
    ) -> AsyncGenerator[FetchProgress]:
        """Put parts of one step where ranks will start on a server; the last item has ``done``."""
        ...

    async def drop_steps(
        self, server: str, folder: str, keys: Sequence[Key], deadline_s: float
    ) -> None:
        """Remove steps from a server, the oldest first; absent ones are no error."""
        ...

    def verify_steps(
        self, server: str, folder: str, key: Key | None, deadline_s: float
    ) -> AsyncGenerator[Verified]:
        """Read a step (all with None) of a server again, and compare it with its manifests."""
        ...

    async def forget_checkpoints(self, server: str, folder: str, deadline_s: float) -> bool:
        """Remove all of a job's folders on a server; return whether there were any.

        ``conflict`` while one of its ranks runs there.
        """
        ...
