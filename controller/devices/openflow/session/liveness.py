"""Decides whether the far end of an OpenFlow session is alive. Pure: ``now`` is an argument.

Any received byte is a sign of life. A quiet session gets an echo request each second and is dead
after five silent seconds, except while the aggregator works on a barrier: that may take long, so a
barrier protects the session for 30 s.
"""

from __future__ import annotations

import threading
from enum import Enum

ECHO_INTERVAL_S = 1.0
SILENT_INTERVALS = 5
BARRIER_PATIENCE_S = 30.0


class Alive(Enum):
    """Whether a session is alive that was quiet for one interval."""

    UNKNOWN = "send an echo request"
    NO = "close the session"


class Liveness:
    """Counts silent intervals and remembers barriers; safe to call from two threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._silent = 0
        self._barriers: dict[int, float] = {}

    def heard(self) -> None:
        """Note that bytes came in."""
        with self._lock:
            self._silent = 0

    def barrier_sent(self, xid: int, now: float) -> None:
        """Note that a barrier was sent (``now`` in monotonic seconds)."""
        with self._lock:
            self._barriers[xid] = now

    def barrier_done(self, xid: int) -> None:
        """Note the barrier's reply or refusal."""
        with self._lock:
            self._barriers.pop(xid, None)

    def quiet(self, now: float) -> Alive:
        """Judge a session without any input for one echo interval."""
        with self._lock:
            self._silent += 1
            if self._silent < SILENT_INTERVALS:
                return Alive.UNKNOWN
            oldest = min(self._barriers.values(), default=None)
            if oldest is None or now - oldest >= BARRIER_PATIENCE_S:
                return Alive.NO
            return Alive.UNKNOWN
