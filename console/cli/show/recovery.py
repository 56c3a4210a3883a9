"""The phases of a recovery on a time line. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from base.figures import figure
from console.cli.show.text import NONE

Document = Mapping[str, Any]

OWN = "lightloom"
PROGRAM = "program"
_BEFORE = ("detect", "decide")
_AFTER = ("start", "import", "first_step")
WIDTH = 40
_HAPPENED = {"drain": "{} drained", "program": "a rank on {} failed"}
"""By the cause of a recovery; all other causes are losses."""


@dataclass(slots=True, frozen=True)
class RecoveryPhase:
    """One phase, in seconds since the failure."""

    name: str
    begins_s: float
    takes_s: float
    whose: str = OWN

    @property
    def ends_s(self) -> float:
        """When it ends."""
        return self.begins_s + self.takes_s


def phases(recovery: Document) -> list[RecoveryPhase]:
    """Return the known phases in their order. Fetching runs beside stopping and light.

    What is not known of the program's own part is one phase, up to the first step.
    """
    found: list[RecoveryPhase] = []
    at = 0.0

    def follow(name: str, begins_s: float) -> float:
        takes_s = recovery.get(f"{name}_s")
        if takes_s is None:
            return begins_s
        whose = PROGRAM if name in _AFTER[1:] else OWN
        found.append(RecoveryPhase(name.replace("_", " "), begins_s, takes_s, whose))
        return found[-1].ends_s

    for name in _BEFORE:
        at = follow(name, at)
    lit = follow("light", follow("stop", at))
    at = max(lit, follow("fetch", at))
    for name in _AFTER:
        at = follow(name, at)
    hidden = [name for name in _AFTER[1:] if recovery.get(f"{name}_s") is None]
    left_s = (recovery.get("total_s") or 0.0) - at
    if hidden and left_s > 0.0:
        whole = len(hidden) == len(_AFTER[1:])
        name = PROGRAM if whole else ", ".join(hidden).replace("_", " ")
        found.append(RecoveryPhase(name, at, left_s, PROGRAM))
    return found


def lines(recovery: Document, width: int = WIDTH) -> list[str]:
    """Draw the phases as bars of text, one a line; ``░`` is the program's own time."""
    shown = phases(recovery)
    end = max((phase.ends_s for phase in shown), default=0.0)
    if end <= 0.0:
        return []
    label = max(len(phase.name) for phase in shown)
    drawn = []
    for phase in shown:
        first = min(width - 1, int(phase.begins_s / end * width))
        last = max(first + 1, round(phase.ends_s / end * width))
        bar = ("█" if phase.whose == OWN else "░") * (last - first)
        drawn.append(
            f"  {phase.name:<{label}}  {' ' * first}{bar}{' ' * (width - last)}"
            f"  {phase.takes_s:.2f} s"
        )
    return drawn


def headline(recovery: Document) -> str:
    """Return in one line what failed, and how the job went on."""
    what = ", ".join(recovery["objects"]) or recovery["cause"]
    return f"{_HAPPENED.get(recovery['cause'], '{} lost').format(what)}: {outcome(recovery)}"


def outcome(recovery: Document) -> str:
    """Return how the job went on after the loss."""
    swaps = ", ".join(f"{spare} for {dead}" for dead, spare in recovery["swaps"].items())
    return {
        "swap": f"spare {swaps}" if swaps else "a spare took the place",
        "again": "started again on the same endpoints",
        "queue": "back to the queue",
        "shrink": "went on with fewer ranks",
        "ended": "the job ended",
    }.get(recovery["how"], str(recovery["how"]))


def steps(recovery: Document) -> str:
    """Return the last written and the resumed step: ``310 → 300, 10 lost``."""
    keys = ("step_written", "step_restored", "steps_lost")
    written, restored, lost = (recovery.get(key) for key in keys)
    if written is None and restored is None:
        return NONE
    start = "?" if written is None else written
    where = "start" if restored is None else restored
    return f"{start} → {where}" + ("" if lost is None else f", {lost} lost")


def costs(lost: Mapping[str, float]) -> Sequence[tuple[str, str]]:
    """Return causes and the GPU-hours they cost, the largest first."""
    ordered = sorted(lost.items(), key=lambda item: -item[1])
    return [(cause, figure(hours)) for cause, hours in ordered]
