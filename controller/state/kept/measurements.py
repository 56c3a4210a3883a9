"""The measurements of the site, without their results. Part of the state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from measure.kinds import Fabric, RunEnd

MeasurementState = Literal["pending", "running", "completed", "failed", "cancelled"]

KEPT_MEASUREMENTS = 200
"""Ended measurements that can still be read."""
KEPT_RESULT_BYTES = 64 * 2**20
"""Of the results of all measurements together."""


@dataclass(slots=True, frozen=True)
class RunRecord:
    """One job of a measurement; ``endpoints`` in rank order."""

    label: str
    endpoints: tuple[str, ...]
    homes: Mapping[str, str] = field(default_factory=dict)
    end: RunEnd | None = None
    """None until it has ended."""


@dataclass(slots=True, frozen=True, kw_only=True)
class MeasurementRecord:
    """One measurement: what was asked, what runs, how it ended."""

    id: str
    type: str
    state: MeasurementState = "pending"
    reason: str = ""
    user: str = ""
    project: str = "default"
    submitted_at: float
    started_at: float | None = None
    finished_at: float | None = None
    endpoints: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1
    fabric: Fabric | None = None
    """As it was when the measurement was accepted; None of an imported one."""
    runs: tuple[RunRecord, ...] = ()
    homes: Mapping[str, str] = field(default_factory=dict)
    """Where the caller wants endpoints to be."""
    homes_before: Mapping[str, str] = field(default_factory=dict)
    """Where the endpoints were that it moved: they are put back at the end."""
    cancelling: bool = False
    """Somebody asked to cancel it."""
    valid: bool | None = None
    invalid_because: tuple[str, ...] = ()
    result_bytes: int = 0

    @property
    def ended(self) -> bool:
        """True when it never runs again."""
        return self.state in ("completed", "failed", "cancelled")


def measurement_number(ident: str) -> int:
    """Return the number in an id: ids are ``m`` and a number, never reused."""
    return int(ident[1:])


class Measurements(Mapping[str, MeasurementRecord]):
    """Every measurement by id, oldest first. Records are frozen: the methods replace them."""

    def __init__(self) -> None:
        self._records: dict[str, MeasurementRecord] = {}
        self.number = 0
        """Number of the last measurement."""
        self.results: dict[str, str] = {}
        """Results, as JSON, that the store may not have yet."""

    def __getitem__(self, ident: str) -> MeasurementRecord:
        return self._records[ident]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def restore(self, records: Iterable[MeasurementRecord], number: int) -> None:
        """Take over the stored measurements and the number of the last one."""
        ordered = sorted(records, key=lambda record: measurement_number(record.id))
        self._records = {record.id: record for record in ordered}
        self.number = max([number, *(measurement_number(ident) for ident in self._records)])

    def next_id(self) -> str:
        """Return an id that was never used."""
        self.number += 1
        return f"m{self.number}"

    def put(self, record: MeasurementRecord) -> MeasurementRecord:
        """Insert or replace a record."""
        self._records[record.id] = record
        return record

    def change(self, ident: str, **fields: object) -> MeasurementRecord:
        """Replace some fields of a record."""
        return self.put(replace(self._records[ident], **fields))  # type: ignore[arg-type]

    def remove(self, ident: str) -> None:
        """Forget a measurement and its result."""
        self._records.pop(ident, None)
        self.results.pop(ident, None)

    def surplus(self) -> tuple[str, ...]:
        """Return the oldest ended measurements beyond the limits; changes nothing."""
        ended = [record for record in self._records.values() if record.ended]
        left, gone = KEPT_RESULT_BYTES, []
        for number, record in enumerate(reversed(ended)):
            left -= record.result_bytes
            if number >= KEPT_MEASUREMENTS or left < 0:
                gone.append(record.id)
        return tuple(reversed(gone))

    def valid(
        self, kind: str, suits: Callable[[MeasurementRecord], bool] = lambda record: True
    ) -> Iterator[MeasurementRecord]:
        """Yield the valid measurements that suit, the newest first; imports are left out."""
        for record in reversed(self._records.values()):
            ours = record.type == kind and record.fabric is not None
            if ours and record.state == "completed" and record.valid and suits(record):
                yield record
