"""Scripts the faults at the front ends of an emulated switch. Pure.

The model has the faults of the optics (slow, stuck or stray mirrors, dark and failed
ports); this module has the protocol faults. All front ends use the same calls, so that a
fault has the same effect in all dialects.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Trick(StrEnum):
    """Fault of one command."""

    DENY = "deny"
    """Refused with a code; not executed."""
    NO_EFFECT = "no-effect"
    """Acknowledged but not executed."""
    HOLLOW = "hollow"
    """Not executed; a reply of success has the rule's ``code`` in place of its content."""
    NO_REPLY = "no-reply"
    """Executed without a response."""
    CUT_BEFORE = "cut-before"
    """The connection ends before the command is executed."""
    CUT_AFTER = "cut-after"
    """The connection ends after the command is executed, before the response."""
    HALF_REPLY = "half-reply"
    """Executed; half of the response is sent, then the connection ends."""


class Firmware(StrEnum):
    """Firmware release that determines the format of replies."""

    USUAL = "usual"
    OLD = "old"
    """Later fields are missing."""
    NEW = "new"
    """Unknown future fields are added."""


@dataclass(slots=True)
class FaultRule:
    """Applies a trick to the next ``count`` commands that contain ``match`` (upper case)."""

    trick: Trick
    match: str = ""
    count: int = 1
    code: str = "SROF"


@dataclass(slots=True)
class Faults:
    """The script: rules for commands, and the format of replies."""

    rules: list[FaultRule] = field(default_factory=list)
    firmware: Firmware = Firmware.USUAL
    shuffle_rows: bool = False
    segment: int = 0
    """Segment size of replies in bytes; 0 sends them whole."""
    interleave: int = 0
    """Number of next responses that get one autonomous message between their rows."""
    delay_s: float = 0.0
    max_sessions: int | None = None
    """Overrides the personality's limit; 0 means no limit."""
    idle_logout_s: float | None = None
    login_race_s: float | None = None
    random: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311 - reproducible, no secret

    def trick(self, command: str, *, changes: bool) -> FaultRule | None:
        """Return the rule for a command and count it. Rules without a match affect only changes."""
        text = command.upper()
        for rule in self.rules:
            if rule.match in text if rule.match else changes:
                rule.count -= 1
                if rule.count <= 0:
                    self.rules.remove(rule)
                return rule
        return None

    def ordered(self, rows: Sequence[str]) -> list[str]:
        """Return rows in the order in which the switch sends them."""
        shuffled = list(rows)
        if self.shuffle_rows:
            self.random.shuffle(shuffled)
        return shuffled

    def segments(self, data: bytes) -> Iterator[bytes]:
        """Split a reply into the segments to send."""
        size = self.segment or max(len(data), 1)
        for start in range(0, len(data), size):
            yield data[start : start + size]

    def clear(self) -> None:
        """End all faults."""
        fresh = Faults()
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))
