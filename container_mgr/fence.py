"""Keeps the highest term of a controller that this agent has seen.

Only the controller with the highest term may change anything; ``rpc.gate`` enforces that. The
term survives a restart of the agent in a file. When ``/run`` is lost, the containers' labels
still have it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from container_mgr import atomic_file

TERM_KEY = "lightloom-term"


class Fence:
    """The highest term seen. It only rises."""

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
        """Raise the fence to ``term`` when that is higher. OSError when it cannot be stored."""
        if term <= self._term:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        atomic_file.write(self._path, str(term))
        self._term = term
