"""Keeps the active alarms, with hysteresis, and defines unsolicited events. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from testbed.ocs_emulator.model import OpticalModel


class AlarmKind(StrEnum):
    """Kind of an event."""

    RAISED = "raised"
    CLEARED = "cleared"
    CHANGED = "changed"
    """Circuits were made or removed."""


@dataclass(slots=True, frozen=True)
class Happening:
    """An unsolicited event of a switch. ``severity`` is CR, MJ, MN or CL."""

    kind: AlarmKind
    obj: str
    severity: str = "CL"
    cause: str = ""
    user: str = ""


class AlarmBook:
    """The active alarms: failed ports (critical), and lost light at the end of a tuned path."""

    def __init__(self, model: OpticalModel) -> None:
        self._model = model
        self.standing: dict[str, Happening] = {}
        """Active alarm by port."""

    def update(self) -> list[Happening]:
        """Compare with the current light; return the raised and the cleared alarms."""
        now = self._now()
        news = [a for port, a in now.items() if port not in self.standing]
        news += [
            Happening(AlarmKind.CLEARED, port, "CL", old.cause)
            for port, old in self.standing.items()
            if port not in now
        ]
        self.standing = now
        return news

    def _now(self) -> dict[str, Happening]:
        found = {
            port: Happening(AlarmKind.RAISED, port, "CR", "LOS")
            for port in sorted(self._model.failed)
        }
        light = self._model.personality.light
        for circuit in self._model.circuits.values():
            if not circuit.tuned:
                continue
            for _, sink in circuit.pairs():
                limit = light.los_dbm
                if sink in self.standing:
                    limit += light.los_hysteresis_db
                if sink not in found and self._model.power_out_dbm(sink) < limit:
                    found[sink] = Happening(AlarmKind.RAISED, sink, "MJ", "LOS")
        return found
