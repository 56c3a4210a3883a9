"""Removes jobs' folders: out of reach in one step, then emptied. All methods block."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import structlog

from container_mgr.checkpoints.disk import files
from container_mgr.checkpoints.disk.space import Space
from container_mgr.volumes import tree

MAX_ENDPOINTS = 64
"""Endpoints of one server with folders of one job."""
_GONE = ".removed"

_log = structlog.get_logger("container_mgr.checkpoints.disk.removal")


class FolderRemoval:
    """Removes jobs' folders below one root directory. Raises OSError."""

    def __init__(self, root: Path, place: Space, stopped: Callable[[], bool]) -> None:
        """``stopped`` returns whether the agent ends; long work then raises AgentEndingError."""
        self._root = root
        self._space = place
        self._stopped = stopped

    def bury(self, name: str) -> bool:
        """Move a job's folder out of reach; return whether it existed."""
        for path in self._endpoints_of(name):
            self._space.release(path)
        with tree.opened(self._root) as at, tree.own(at, _GONE, 0o700, name) as gone:
            try:
                tree.move_away(at, name, gone)
            except FileNotFoundError:
                return False
            os.fsync(at)
        return True

    def dig(self) -> None:
        """Delete what was moved out of reach, also what a crash left. Raises AgentEndingError.

        What cannot be deleted stays until the next time, and nothing else waits for it.
        """
        with tree.opened(self._root) as at, tree.own(at, _GONE, 0o700, _GONE) as gone:
            try:
                files.empty(gone, self._stopped)
            except OSError as error:
                _log.error("not removed", folder=str(self._root / _GONE), reason=str(error))

    def _endpoints_of(self, name: str) -> list[Path]:
        try:
            with tree.opened(self._root / name) as at:
                return [self._root / name / n for n in files.names(at, MAX_ENDPOINTS)]
        except FileNotFoundError:
            return []
