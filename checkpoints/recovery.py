"""One recovery as a row of phases that add up. Seconds of one clock, the controller's. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

SLACK_S = 1e-6
"""Largest rounding error of a sum."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Marks:
    """Moments of a recovery, in seconds of one monotonic clock."""

    failed: float
    """The rank or endpoint died."""
    detected: float
    decided: float
    """Step, spare and plan are chosen, and the dead endpoint is fenced."""
    stopped: float
    """The other ranks are gone."""
    lit: float
    """The transaction of light is done; ``stopped`` when no light moved."""
    fetched: float
    """All parts are where they are needed. Runs beside stop and light."""
    started: float
    """The containers run."""
    imported: float
    """The program's framework is imported."""
    stepped: float
    """The first new step is done."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Recovery:
    """A finished recovery. Raises ValueError when its figures do not add up.

    Fetching runs beside stopping and light: the longer of the two counts, so
    ``total = detect + decide + max(stop + light, fetch) + start + import + first step``.
    """

    step_written: int
    """The last step that was written before the failure."""
    step_restored: int
    """0 for a start from nothing."""
    steps_lost: int
    detect_s: float
    decide_s: float
    stop_s: float
    light_s: float
    fetch_s: float
    start_s: float
    import_s: float
    first_step_s: float
    """With the loading of the checkpoint, which shows nowhere."""
    total_s: float

    def __post_init__(self) -> None:
        phases = (
            self.detect_s,
            self.decide_s,
            self.stop_s,
            self.light_s,
            self.fetch_s,
            self.start_s,
            self.import_s,
            self.first_step_s,
        )
        if not all(math.isfinite(phase) and phase >= 0 for phase in phases):
            raise ValueError("a phase of a recovery has no length: a mark is missing or misplaced")
        if abs(self.total_s - self.path_s) > SLACK_S + 1e-9 * abs(self.total_s):
            raise ValueError(f"phases sum to {self.path_s} s, the recovery lasts {self.total_s} s")
        if not 0 <= self.step_restored <= self.step_written:
            raise ValueError(
                f"step {self.step_restored} is restored where {self.step_written} was written last"
            )
        if self.steps_lost != self.step_written - self.step_restored:
            raise ValueError(f"{self.steps_lost} steps lost does not match the recorded steps")

    @property
    def path_s(self) -> float:
        """The longest path through the phases."""
        return (
            self.detect_s
            + self.decide_s
            + max(self.stop_s + self.light_s, self.fetch_s)
            + self.start_s
            + self.import_s
            + self.first_step_s
        )

    @property
    def own_s(self) -> float:
        """Lightloom's part: all but the program's import and first step."""
        return self.path_s - self.import_s - self.first_step_s


def recovery(step_written: int, step_restored: int, marks: Marks) -> Recovery:
    """Make the row from the moments of a recovery. Raises ValueError when they are out of order."""
    ready = max(marks.lit, marks.fetched)
    return Recovery(
        step_written=step_written,
        step_restored=step_restored,
        steps_lost=step_written - step_restored,
        detect_s=marks.detected - marks.failed,
        decide_s=marks.decided - marks.detected,
        stop_s=marks.stopped - marks.decided,
        light_s=marks.lit - marks.stopped,
        fetch_s=marks.fetched - marks.decided,
        start_s=marks.started - ready,
        import_s=marks.imported - marks.started,
        first_step_s=marks.stepped - marks.imported,
        total_s=marks.stepped - marks.failed,
    )
