"""When a job whose rank died is started again. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from controller.schema.jobs import RESTART_PATTERN

DEFAULT_TIMES = 3
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0


@dataclass(slots=True, frozen=True)
class RestartPolicy:
    """``times`` is how often in all."""

    times: int

    @classmethod
    def parse(cls, text: str) -> RestartPolicy:
        """Read what :data:`RESTART_PATTERN` allows; ValueError for anything else."""
        if re.fullmatch(RESTART_PATTERN, text) is None:
            raise ValueError(f"{text!r} is neither never nor on-failure[:N]")
        word, _, number = text.partition(":")
        if word == "never":
            return cls(0)
        return cls(int(number) if number else DEFAULT_TIMES)

    def wait_s(self, failures: int) -> float | None:
        """Seconds to wait after the ``failures``-th death, None when that was one too many.

        Doubled every time: a job that cannot run must not keep a server busy with trying.
        """
        if failures > self.times:
            return None
        return float(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (failures - 1)))
