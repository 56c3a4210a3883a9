"""What must be known of jobs' checkpoints after a restart of the controller. Part of the state.

What servers hold is not here: they say it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from checkpoints.ledger import Key, Run

RunEnd = Literal["", "own", "unfit", "stopped"]
"""How a run ended: not yet, by the death of a rank, with lost hardware, or on request."""

KEPT_RUNS = 256
"""Runs of one job: the newest."""


@dataclass(slots=True, frozen=True, kw_only=True)
class RunRecord:
    """One run of a job's ranks. Durable before its first rank starts."""

    epoch: int
    run: Run
    endpoints: tuple[str, ...]
    """In rank order."""
    began_at: float
    stepped: bool = False
    """It made a step after what it had loaded."""
    end: RunEnd = ""


@dataclass(slots=True, frozen=True, kw_only=True)
class CheckpointRecord:
    """The checkpoints of one submitted job."""

    folder: str
    """Names its folders on servers; never used twice."""
    job: str
    key: bytes = field(repr=False)
    """Authorises transfers between servers."""
    runs: tuple[RunRecord, ...] = ()
    """Oldest first."""
    spoiled: tuple[tuple[Key, str], ...] = ()
    servers: frozenset[str] = frozenset()
    """Where folders may be."""
    remove_after: float | None = None
    """When its folders go, in seconds since 1970; None while the job may run again."""


class Checkpoints(Mapping[str, CheckpointRecord]):
    """Every record by folder. Records are frozen: the methods replace them."""

    def __init__(self) -> None:
        self._records: dict[str, CheckpointRecord] = {}

    def __getitem__(self, folder: str) -> CheckpointRecord:
        return self._records[folder]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def restore(self, records: Iterable[CheckpointRecord]) -> None:
        """Take over the stored records."""
        self._records = {record.folder: record for record in records}

    def put(self, record: CheckpointRecord) -> CheckpointRecord:
        """Insert or replace a record."""
        self._records[record.folder] = record
        return record

    def change(self, folder: str, **fields: object) -> CheckpointRecord:
        """Replace some fields of a record."""
        return self.put(replace(self._records[folder], **fields))  # type: ignore[arg-type]

    def remove(self, folder: str) -> CheckpointRecord | None:
        """Forget a record; return it, None if there is none."""
        return self._records.pop(folder, None)
