"""The restart policy: whether and when a job whose rank died starts again. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from controller.schema.jobs import RESTART_PATTERN

DEFAULT_TIMES = 3
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0


@dataclass(slots=True, frozen=True)
class RestartPolicy:
    """``times`` limits the number of restarts."""

    times: int

    @classmethod
    def parse(cls, text: str) -> RestartPolicy:
        """Parse a text that matches :data:`RESTART_PATTERN`; ValueError for any other."""
        if re.fullmatch(RESTART_PATTERN, text) is None:
            raise ValueError(f"{text!r} is neither never nor on-failure[:N]")
        word, _, number = text.partition(":")
        if word == "never":
            return cls(0)
        return cls(int(number) if number else DEFAULT_TIMES)

    def wait_s(self, failures: int) -> float | None:
        """Return the seconds to wait after the ``failures``-th failure; None when it is final.

        The wait doubles every time, so that a job that cannot run does not keep a server busy.
        """
        if failures > self.times:
            return None
        return float(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (failures - 1)))
