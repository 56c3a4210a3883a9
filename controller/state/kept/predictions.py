"""Predictions of steps, and what was measured. Part of the state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

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


class Predictions(Mapping[str, PredictionRecord]):
    """Predictions by id, oldest first. Records are frozen: ``put`` replaces them."""

    def __init__(self) -> None:
        self._records: dict[str, PredictionRecord] = {}
        self._last = 0

    def __getitem__(self, ident: str) -> PredictionRecord:
        return self._records[ident]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def restore(self, predictions: Iterable[PredictionRecord]) -> None:
        """Take over the stored predictions."""
        found = sorted(predictions, key=lambda record: number_of(record.id))
        self._records = {record.id: record for record in found}
        self._last = number_of(found[-1].id) if found else 0

    def next_id(self) -> str:
        """Return an id that no prediction has had."""
        self._last += 1
        return f"p{self._last}"

    def put(self, prediction: PredictionRecord) -> None:
        """Add or replace a prediction."""
        self._records[prediction.id] = prediction

    def trim(self) -> tuple[str, ...]:
        """Forget the oldest predictions beyond the limit; return their ids."""
        gone = list(self._records)[: max(0, len(self._records) - KEPT_PREDICTIONS)]
        for ident in gone:
            self.remove(ident)
        return tuple(gone)

    def remove(self, ident: str) -> None:
        """Forget a prediction."""
        self._records.pop(ident, None)


def number_of(ident: str) -> int:
    """Return the number in an id: 12 of ``p12``. Raises ValueError for another text."""
    return int(ident.removeprefix("p"))
