"""Parts of checkpoints as they lie on this server; agentlink has what is reported of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentlink.checkpoints import HoldingKind
from checkpoints.ledger import Key, Member
from checkpoints.manifest import Manifest


@dataclass(slots=True, frozen=True)
class PartPlace:
    """Where a part or parity lies on this server: in the folder of a rank's endpoint."""

    folder: str
    endpoint: str
    kind: HoldingKind
    rank: int
    """The rank whose part it is; for a parity, the rank that keeps it."""
    key: Key


@dataclass(slots=True, frozen=True)
class HeldPart:
    """A whole part (or parity) on this server."""

    place: PartPlace
    root: Path
    """Directory with its files, never with links."""
    manifest: Manifest
    """For a parity: manifest of the one file ``parity``."""
    covers: tuple[Member, ...] = ()
    """For a parity: its set in the order of the ring."""
    manifests: tuple[Manifest, ...] = ()
    """For a parity: manifests of all members' parts, to cut a lost one into its files."""
