"""Parts of checkpoints as they lie on this server; what is told of them is in agentlink."""

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
    """Whose part; with a parity, who keeps it."""
    key: Key


@dataclass(slots=True, frozen=True)
class HeldPart:
    """A whole part (or parity) on this server."""

    place: PartPlace
    root: Path
    """Directory with its files, never with links."""
    manifest: Manifest
    """Of a parity: of the one file ``parity``."""
    covers: tuple[Member, ...] = ()
    """Of a parity: its set in the order of the ring."""
    manifests: tuple[Manifest, ...] = ()
    """Of a parity: those of all members' parts, so that a lost one can be cut into its files."""
