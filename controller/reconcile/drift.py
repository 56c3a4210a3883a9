"""Detects drift: differences between the intent and the devices. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from controller.devices.aggregators import AttachPoint
from controller.devices.engine import RankState, RankStatus
from controller.state.records import JobRecord
from controller.transaction.circuits import End


@dataclass(slots=True, frozen=True)
class LightDrift:
    """One end whose light is not where the intent has it; None is dark."""

    end: End
    expected: AttachPoint | None
    found: AttachPoint | None

    def __str__(self) -> str:
        return f"expected {self.expected or 'dark'}, found {self.found or 'dark'}"


def light_drift(
    expected: Mapping[End, AttachPoint | None], found: Mapping[End, AttachPoint]
) -> list[LightDrift]:
    """Return the ends in ``expected`` whose light is not where it is expected, in their order."""
    return [
        LightDrift(end, at, found.get(end)) for end, at in expected.items() if at != found.get(end)
    ]


MASS_MINIMUM = 3
"""Fewer objects than this are never a mass."""


def is_mass(gone: int, of: int) -> bool:
    """Whether so many vanished at once that the fault is more likely the controller's."""
    return gone >= MASS_MINIMUM and 2 * gone > of


def stray_ranks(
    jobs: Iterable[JobRecord], statuses: Iterable[RankStatus]
) -> dict[str, tuple[str, str]]:
    """Return, per job, the call that corrects it and why: ``{"red": ("thaw", "rank 1 is …")}``.

    Such a job has a frozen container though it runs, or a running one though it is paused.
    """
    wrong = {
        "running": (RankState.PAUSED, "thaw", "frozen though its job runs"),
        "paused": (RankState.RUNNING, "freeze", "running though its job is paused"),
    }
    epochs = {job.name: (job.epoch, wrong[job.state]) for job in jobs if job.state in wrong}
    found: dict[str, tuple[str, str]] = {}
    for status in statuses:
        epoch, (state, call, text) = epochs.get(status.job, (-1, (RankState.ABSENT, "", "")))
        if status.epoch == epoch and status.state is state:
            found.setdefault(status.job, (call, f"rank {status.rank} is {text}"))
    return found


SUSPECT_WINDOW_S = 10.0


class LossDetector:
    """Detects that most devices vanished within a short time: the fault is then probably here.

    A control plane that fails static: a controller that lost its own network must not "repair" a
    healthy fabric.
    """

    def __init__(self) -> None:
        self._there: frozenset[str] = frozenset()
        self._lost: deque[tuple[float, str]] = deque()

    def observe(self, there: Collection[str], now: float) -> str:
        """Note the devices that answer at ``now``; return why the fault may be here, or ""."""
        present = frozenset(there)
        self._lost.extend((now, name) for name in sorted(self._there - present))
        self._there = present
        while self._lost and (
            now - self._lost[0][0] > SUSPECT_WINDOW_S and not self._still_a_mass(present)
        ):
            self._lost.popleft()
        gone = {name for _, name in self._lost} - present
        if not is_mass(len(gone), len(gone) + len(present)):
            return ""
        return f"{len(gone)} of {len(gone) + len(present)} devices vanished at once"

    def _still_a_mass(self, present: frozenset[str]) -> bool:
        """A suspicion ends when devices come back, not because time passes."""
        together = {name for at, name in self._lost if at - self._lost[0][0] <= SUSPECT_WINDOW_S}
        gone = together - present
        return is_mass(len(gone), len(gone) + len(present))
