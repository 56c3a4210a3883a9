"""The phases of a recovery, from the moments that its row has. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from checkpoints.recovery import Marks, recovery
from controller.state.kept.recoveries import RecoveryRecord

_PHASES = (
    ("detect_s", "failed", "detected"),
    ("decide_s", "detected", "decided"),
    ("stop_s", "decided", "stopped"),
    ("light_s", "stopped", "lit"),
    ("fetch_s", "decided", "fetched"),
    ("start_s", "ready", "started"),
    ("import_s", "started", "imported"),
    ("first_step_s", "imported", "stepped"),
)
_UNDER_WAY = (
    ("decided", "decide"),
    ("stopped", "stop"),
    ("lit", "light"),
    ("fetched", "fetch"),
    ("started", "start"),
)
"""The phase that goes on until a moment comes, in their order."""


def figures(record: RecoveryRecord) -> Mapping[str, float | None]:
    """Return the phases of a recovery in seconds, None for what is not known.

    With all marks they are those of ``checkpoints.recovery``, which add up.
    """
    if record.broken:
        return {}
    marks = {"failed": 0.0, **record.marks}
    names = Marks.__slots__
    if marks.keys() >= set(names):
        try:
            whole = recovery(0, 0, Marks(**{name: marks[name] for name in names}))
        except ValueError:
            return {}
        shown = (*(phase for phase, _, _ in _PHASES), "total_s", "own_s")
        return {name: getattr(whole, name) for name in shown}
    if "lit" in marks and "fetched" in marks:
        marks["ready"] = max(marks["lit"], marks["fetched"])
    found = {name: _between(marks, since, until) for name, since, until in _PHASES}
    return {**found, "total_s": marks.get("stepped"), "own_s": marks.get("started")}


def _between(marks: Mapping[str, float], since: str, until: str) -> float | None:
    if since not in marks or until not in marks:
        return None
    lasted_s = marks[until] - marks[since]
    return lasted_s if lasted_s >= 0 else None


def phase_of(record: RecoveryRecord) -> str | None:
    """Return the phase that goes on: that of the first moment to come; None when it is over."""
    if not record.open:
        return None
    if record.how == "queue" and record.stage == "decided":
        return "queue"
    if record.stage == "started":
        return "first_step"
    return next((phase for mark, phase in _UNDER_WAY if mark not in record.marks), "start")
