"""How much one switch may ask of the controller. Pure: ``now`` is an argument.

A switch that floods costs a bounded share of a core and of memory, and no other switch waits for
it. Unasked messages are judged before they are decoded, for decoding is what costs time.
"""

from __future__ import annotations

from enum import Enum

ERROR, PACKET_IN, PORT_STATUS = 1, 10, 12
MULTIPART_REPLY, BARRIER_REPLY = 19, 21

PACKET_IN_RATE = 200.0
"""Packet-ins a second that are looked at; containers can send as many as they like."""
ERRORS = 1024
"""Refusals between two answers that are looked at: a full table may refuse every rule."""
PORT_STATUS_RATE = 200.0
PORT_STATUS_BURST = 4096.0
"""Port messages: a second, and at once. None may be lost, so a switch with more has to call again
and is asked for all its ports."""
CPU_SHARE = 0.25
CPU_BURST_S = 10.0
"""Processor time that the messages of one switch get: of every second, and saved up."""


class Allowance:
    """A token bucket: ``rate`` a second, at most ``burst`` (``rate`` when not given) at once."""

    def __init__(self, rate: float, now: float, burst: float | None = None) -> None:
        self._rate = rate
        self._most = self._left = rate if burst is None else burst
        self._at = now

    def take(self, now: float) -> bool:
        """Take one token if there is one."""
        self._fill(now)
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def spend(self, amount: float, now: float) -> float:
        """Take ``amount`` in any case; return for how many seconds to pause, 0.0 for none."""
        self._fill(now)
        self._left -= amount
        return max(0.0, -self._left / self._rate)

    def _fill(self, now: float) -> None:
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now


class Verdict(Enum):
    """What to do with a message."""

    TAKE = "decode it"
    SKIP = "forget it"
    END = "end the session: what it says may not be forgotten, and is too much"


class Meter:
    """Judges the messages of one session by their headers."""

    def __init__(self, now: float) -> None:
        self._packets = Allowance(PACKET_IN_RATE, now)
        self._ports = Allowance(PORT_STATUS_RATE, now, PORT_STATUS_BURST)
        self._errors = 0

    def judge(self, kind: int, *, asked: bool, now: float) -> Verdict:
        """Judge a message; ``asked`` says whether its transaction id is of a request under way."""
        if kind == PACKET_IN:
            return Verdict.TAKE if self._packets.take(now) else Verdict.SKIP
        if kind == PORT_STATUS:
            return Verdict.TAKE if self._ports.take(now) else Verdict.END
        if kind == ERROR:
            self._errors += 1
            return Verdict.TAKE if self._errors <= ERRORS else Verdict.SKIP
        if kind in (MULTIPART_REPLY, BARRIER_REPLY):
            if not asked:
                return Verdict.SKIP
            self._errors = 0
        return Verdict.TAKE
