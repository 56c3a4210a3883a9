"""Predictions of steps, and what was measured. Part of the state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from controller.state.kinds.kind import Kind, Records
from controller.state.kinds.shares import one

KEPT_PREDICTIONS = 2000

Cause = Literal["whatif", "plan", "compare", "advise"]


@dataclass(slots=True, frozen=True, kw_only=True)
class PredictionRecord:
    """What a job's step will be with other homes, and what was measured once they came true."""

    id: str
    job: str
    submitted_at: float
    """Of the job: another one may get its name later."""
    project: str
    cause: Cause
    made_at: float
    homes: Mapping[str, str | None]
    """Of the job's endpoints."""
    low_s: float | None
    """None where only the ratio to the step before is known."""
    high_s: float | None
    step_before_s: float | None = None
    basis: tuple[str, ...] = ()
    spec: str = ""
    """Of a comparison: any job of this kind may meet it; ``job`` is a name only once one has."""
    state: Literal["open", "met", "expired"] = "open"
    measured_s: float | None = None
    measured_at: float | None = None
    error: float | None = None
    """|predicted - measured| / measured, from the middle of the interval."""


PREDICTIONS = Kind(
    "predictions",
    PredictionRecord,
    key="id",
    order="made_at",
    columns=("job", "made_at"),
    prefix="p",
)


class Predictions(Records[PredictionRecord]):
    """Predictions by id."""

    def trim(self) -> tuple[str, ...]:
        """Forget those beyond the limit, the oldest of the project with most; return their ids."""
        gone = self.share_out(lambda record: record.project, (KEPT_PREDICTIONS, one))
        return tuple(record.id for record in gone)
