"""Limits what one aggregator may ask of the controller. Pure: ``now`` is an argument.

An aggregator that floods costs a bounded share of a core and of memory, and no other one waits for
it. Unsolicited messages are judged before they are decoded, because decoding costs the time.
"""

from __future__ import annotations

from enum import Enum

from controller.base.token_bucket import TokenBucket

ERROR, PACKET_IN, PORT_STATUS = 1, 10, 12
MULTIPART_REPLY, BARRIER_REPLY = 19, 21

PACKET_IN_RATE = 200.0
"""Packet-ins a second that are decoded; containers can cause any number."""
ERRORS = 1024
"""Refusals between two answers that are decoded: a full table may refuse every rule."""
PORT_STATUS_RATE = 200.0
PORT_STATUS_BURST = 4096.0
"""Port messages: a second, and at once. None may be lost, so the session of an aggregator with more
ends, and the next one reads all ports."""
CPU_SHARE = 0.25
CPU_BURST_S = 10.0
"""Processor time for the messages of one aggregator: of every second, and saved up."""


class Handling(Enum):
    """What to do with a message."""

    DECODE = "decode it"
    IGNORE = "ignore it"
    END = "end the session: the message must not be ignored, and there are too many"


class Meter:
    """Judges the messages of one session by their headers."""

    def __init__(self) -> None:
        self._packets = TokenBucket(PACKET_IN_RATE, PACKET_IN_RATE)
        self._ports = TokenBucket(PORT_STATUS_RATE, PORT_STATUS_BURST)
        self._errors = 0

    def judge(self, kind: int, *, asked: bool, now: float) -> Handling:
        """Judge a message; ``asked``: its transaction id is that of an open request."""
        if kind == PACKET_IN:
            return Handling.DECODE if self._packets.consume(now) else Handling.IGNORE
        if kind == PORT_STATUS:
            return Handling.DECODE if self._ports.consume(now) else Handling.END
        if kind == ERROR:
            self._errors += 1
            return Handling.DECODE if self._errors <= ERRORS else Handling.IGNORE
        if kind in (MULTIPART_REPLY, BARRIER_REPLY):
            if not asked:
                return Handling.IGNORE
            self._errors = 0
        return Handling.DECODE
