"""What goes wrong at the front ends of an emulated switch, by script. Pure.

Faults of the optics (slow, stuck or stray mirrors, dark and failed ports) live in the
model; here are those of the conversation. Every front end asks the same questions, so
that a fault works alike in all dialects.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Trick(StrEnum):
    """How one command is mistreated."""

    DENY = "deny"
    """Refused with a code; not carried out."""
    NO_EFFECT = "no-effect"
    """Answered as if carried out, and is not."""
    NO_REPLY = "no-reply"
    """Carried out and never answered."""
    CUT_BEFORE = "cut-before"
    """The connection ends before the command is carried out."""
    CUT_AFTER = "cut-after"
    """The connection ends after the command is carried out, before the answer."""
    HALF_REPLY = "half-reply"
    """Carried out; half of the answer comes, then the connection ends."""


class Firmware(StrEnum):
    """Which of its releases the switch's replies are written in."""

    USUAL = "usual"
    OLD = "old"
    """Fields that came later are missing."""
    NEW = "new"
    """Fields nobody has heard of yet are added."""


@dataclass(slots=True)
class Rule:
    """Mistreat the next ``count`` commands that contain ``match`` (upper case)."""

    trick: Trick
    match: str = ""
    count: int = 1
    code: str = "SROF"


@dataclass(slots=True)
class Faults:
    """The script: rules for commands, and how replies are written."""

    rules: list[Rule] = field(default_factory=list)
    firmware: Firmware = Firmware.USUAL
    shuffle_rows: bool = False
    segment: int = 0
    """Bytes per segment replies are cut into; 0 leaves them whole."""
    interleave: int = 0
    """Unasked messages put into the next answers, one each, between its rows."""
    delay_s: float = 0.0
    max_sessions: int | None = None
    """Overrides the personality's; 0 means no limit."""
    idle_logout_s: float | None = None
    login_race_s: float | None = None
    random: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311 - reproducible, no secret

    def trick(self, command: str, *, changes: bool) -> Rule | None:
        """Return the rule for a command and count it. Unmatched rules hit only changes."""
        text = command.upper()
        for rule in self.rules:
            if rule.match in text if rule.match else changes:
                rule.count -= 1
                if rule.count <= 0:
                    self.rules.remove(rule)
                return rule
        return None

    def ordered(self, rows: Sequence[str]) -> list[str]:
        """Return rows in the order the switch sends them today."""
        shuffled = list(rows)
        if self.shuffle_rows:
            self.random.shuffle(shuffled)
        return shuffled

    def segments(self, data: bytes) -> Iterator[bytes]:
        """Cut a reply into the segments it is sent in."""
        size = self.segment or max(len(data), 1)
        for start in range(0, len(data), size):
            yield data[start : start + size]

    def clear(self) -> None:
        """Behave again."""
        fresh = Faults()
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))
