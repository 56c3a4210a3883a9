"""Limits a rate: a token bucket. Pure: ``now`` is an argument, in seconds of a monotonic clock."""

from __future__ import annotations


class TokenBucket:
    """Gains ``rate`` tokens a second and holds ``burst`` at most; full at the first use."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = self._left = burst
        self._at: float | None = None

    def consume(self, now: float, cost: float = 1) -> bool:
        """Take ``cost`` tokens if there are as many."""
        self._fill(now)
        if self._left < cost:
            return False
        self._left -= cost
        return True

    def spend(self, now: float, cost: float) -> float:
        """Take ``cost`` tokens in any case; return the seconds until none is owed any more."""
        self._fill(now)
        self._left -= cost
        return max(0.0, -self._left / self._rate)

    def wait_s(self, now: float, cost: float = 1) -> float:
        """Return the seconds until ``take`` succeeds."""
        self._fill(now)
        return max(0.0, (cost - self._left) / self._rate)

    def _fill(self, now: float) -> None:
        if self._at is not None:
            self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
