"""Who may command an agent: the controller, and of several the newest.

Wraps every method of the service, so a new one cannot be forgotten. Reading is allowed to
every controller and never raises the term; changing is allowed only to the one with the highest
term seen. The highest term outlives the agent in a file, and the machine's ``/run`` in the
containers' labels.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import structlog

TERM_KEY = "lightloom-term"

_log = structlog.get_logger("container_mgr.fence")


class Fence:
    """The highest term seen. A term only grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._term = 0
        with suppress(OSError, ValueError):
            self._term = int(path.read_text(encoding="ascii"))

    @property
    def term(self) -> int:
        """The highest term seen; 0 before any."""
        return self._term

    def raise_to(self, term: int) -> None:
        """Raise the fence to ``term`` when it is higher. OSError when that is not durable."""
        if term <= self._term:
            return
        beside = self._path.with_suffix(".new")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding="ascii") as out:
            out.write(str(term))
            out.flush()
            os.fsync(out.fileno())
        beside.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)  # the new name, too, outlives a power cut
        finally:
            os.close(directory)
        self._term = term
