"""Plans that are carried out in batches, under way and over. Part of the state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from controller.state.records import MoveRecord

RolloutState = Literal["running", "committed", "stopped"]
KEPT_ROLLOUTS = 100
"""Ones that are over."""


@dataclass(slots=True, frozen=True, kw_only=True)
class RolloutRecord:
    """One plan's batches: each is one transaction, and begins when the one before has committed."""

    id: str
    plan_id: str
    state: RolloutState = "running"
    batches: tuple[tuple[MoveRecord, ...], ...] = ()
    """All of them, in order; none once it is over."""
    total: int
    """Number of batches."""
    least: int
    """Lower bound on it."""
    done: int = 0
    """Batches that have committed."""
    max_dark: int
    max_pauses: int = 1
    park: bool = False
    pauses: Mapping[str, int] = field(default_factory=dict)
    """By job: pauses of the whole rollout."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """By endpoint that moves: the job that holds it; idle ones are absent."""
    jobs: Mapping[str, float] = field(default_factory=dict)
    """When the jobs were submitted: another one may get their name."""
    room_for: str | None = None
    """The waiting job that fits afterwards."""
    room: tuple[str, ...] = ()
    """The endpoints that are kept for it until then."""
    transactions: tuple[str, ...] = ()
    """Every one that was begun, in order."""
    attempts: int = 0
    """How often the next batch was begun; more than once after a restart of the controller."""
    abort: bool = False
    """An operator wants no further batch to begin."""
    started_at: float
    """Seconds since 1970, as is ``finished_at``."""
    finished_at: float | None = None
    result: str = ""

    @property
    def idle(self) -> frozenset[str]:
        """Idle endpoints that the batches still to come move."""
        left = self.batches[self.done :]
        return frozenset(m.endpoint for batch in left for m in batch) - self.owners.keys()


class Rollouts(Mapping[str, RolloutRecord]):
    """Rollouts by id, oldest first. Records are frozen: the methods replace them."""

    def __init__(self) -> None:
        self._records: dict[str, RolloutRecord] = {}
        self.number = 0
        """Number of the last one."""

    def __getitem__(self, ident: str) -> RolloutRecord:
        return self._records[ident]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def restore(self, records: Iterable[RolloutRecord], number: int) -> None:
        """Take over what is stored, and the number of the last one."""
        ordered = sorted(records, key=lambda record: number_of(record.id))
        self._records = {record.id: record for record in ordered}
        self.number = max([number, *(number_of(ident) for ident in self._records)])

    def next_id(self) -> str:
        """Return an id that no rollout has had."""
        self.number += 1
        return f"o{self.number}"

    def put(self, record: RolloutRecord) -> RolloutRecord:
        """Insert or replace a record."""
        self._records[record.id] = record
        return record

    def change(self, ident: str, **fields: object) -> RolloutRecord:
        """Replace some fields of a record."""
        return self.put(replace(self._records[ident], **fields))  # type: ignore[arg-type]

    def remove(self, ident: str) -> None:
        """Forget a record."""
        self._records.pop(ident, None)

    @property
    def under_way(self) -> RolloutRecord | None:
        """The one that is not over; there is one at a time."""
        return next((r for r in self._records.values() if r.state == "running"), None)

    def surplus(self) -> tuple[str, ...]:
        """Return the oldest ones beyond the limit that are over; changes nothing."""
        over = [r.id for r in self._records.values() if r.state != "running"]
        return tuple(over[: max(len(over) - KEPT_ROLLOUTS, 0)])


def number_of(ident: str) -> int:
    """Return the number in an id: 12 of ``o12``. Raises ValueError for another text."""
    return int(ident.removeprefix("o"))
