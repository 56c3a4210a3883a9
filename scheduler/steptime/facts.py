"""What was measured of a job's steps in one placement: enough to identify its profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Source = Literal["nccl", "torch", "tf", "wire", "printed"]
"""The source: a recorder, the bytes on the wire, or the program's own step lines."""
WITH_HEADERS: frozenset[Source] = frozenset({"wire", "tf"})
"""Sources whose bytes are the port's; the others' are payload."""


@dataclass(slots=True, frozen=True, kw_only=True)
class StepFacts:
    """Medians over the steps that were seen, of the slowest rank. Seconds and bytes."""

    ranks: int
    step_s: float
    comm_s: float
    """Time in which at least one collective was under way."""
    exposed_s: float
    """The part of it in which nothing else was done."""
    bytes_per_step: float
    """Size of all arrays that a step reduces; a ring sends 2 (N - 1) / N of it per rank."""
    calls_per_step: float
    ring_rate: float | None = None
    """Fair share of the job's ring when this was measured, relative to an access link."""
    wait_s: float | None = None
    """Time of a step in which it waited for its next batch."""
    spread: float = 0.0
    """Half the 95 % interval of ``step_s``, relative."""
    source: Source = "wire"
    steps: int = 0
    """Number of steps behind the medians."""
