"""Reads the folders on disk after a restart of the agent. All functions block."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agentlink.checkpoints import Folder, Holding, HoldingKind
from checkpoints.ledger import Key
from container_mgr.checkpoints import layout
from container_mgr.checkpoints.disk import files
from container_mgr.checkpoints.disk.removal import MAX_ENDPOINTS
from container_mgr.checkpoints.parts import About
from container_mgr.checkpoints.rank_folder import RankFolder, Stored
from container_mgr.checkpoints.values import HeldPart, PartPlace
from container_mgr.checkpoints.watching.live import FolderRun, load_run
from container_mgr.volumes import tree

_ENDPOINT = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

_log = structlog.get_logger("container_mgr.checkpoints.recovery")


@dataclass(slots=True)
class RecoveredFolder:
    """What one endpoint's folder has."""

    parts: list[tuple[HeldPart, About]] = field(default_factory=list)
    damaged: list[tuple[PartPlace, str]] = field(default_factory=list)
    """Parts that are not whole, and why. They are removed already."""
    stored: list[Holding] = field(default_factory=list)
    run: FolderRun | None = None
    """The last run of a rank there."""
    restoring: bool = False
    """Its rank may still read what it resumed from."""

    @property
    def stamps(self) -> dict[Key, str]:
        """``files.written`` of the program's files, for each of the rank's own parts."""
        return {
            p.place.key: about.stamp for p, about in self.parts if p.place.kind is HoldingKind.OWN
        }


def is_endpoint(name: str) -> bool:
    """Return whether an endpoint can have this name."""
    return _ENDPOINT.fullmatch(name) is not None


def folders(root: Path) -> Iterator[tuple[str, Folder | None, list[str]]]:
    """Yield name, record and endpoints of each job's folder; no record where it cannot be read.

    Raises OSError when the root cannot be read.
    """
    with tree.opened(root) as at:
        names = files.names(at, 2 * layout.MAX_FOLDERS)
    for name in filter(layout.is_folder, names):
        try:
            folder = layout.load(root / name / layout.RECORD)
            if folder.name != name:
                raise ValueError(f"its record belongs to {folder.name}")
        except (OSError, ValueError) as error:
            # A crash between the two steps of its making, or of its removal.
            _log.warning("folder without a record", folder=name, reason=str(error))
            yield name, None, []
            continue
        with tree.opened(root / name) as at:
            yield name, folder, [n for n in files.names(at, MAX_ENDPOINTS) if is_endpoint(n)]


def read(rank_folder: RankFolder) -> RecoveredFolder:
    """Read an endpoint's folder and remove what is not whole. Raises OSError."""
    found = RecoveredFolder()
    rank_folder.clean(layout.ARRIVING)
    rank_folder.clean(layout.REMOVED)
    for place, part, about, why in rank_folder.stocktake():
        if part is None:
            _log.warning("damaged part", folder=place.folder, step=place.key, reason=why)
            rank_folder.remove(layout.parents(place), layout.named(place.key))
            found.damaged.append((place, why))
        else:
            found.parts.append((part, about))
    found.stored = Stored(rank_folder).all()
    content = rank_folder.read(layout.RUN)
    if content is None:
        return found
    try:
        found.run = load_run(content)
    except ValueError as error:
        _log.error(
            "run not read",
            folder=rank_folder.folder.name,
            at=rank_folder.endpoint,
            reason=str(error),
        )
        return found
    with rank_folder.opened(layout.RESTORE) as at:
        found.restoring = bool(files.names(at, 1))
    return found
