"""A kind of records, declared once: the type, its key, and its table.

The state keeps records by it (``Records``), the store makes its table and its documents from it, a
durable change names its rows by it. A new kind is a declaration beside its type, and its name in
``controller.state.kept.kinds``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from controller.state.kinds.shares import Limit, surplus

Record = TypeVar("Record")
Key = tuple[str, str]
"""A row: its kind and its name."""


@dataclass(slots=True, frozen=True)
class Kind(Generic[Record]):
    """Records of one frozen dataclass, kept one row each.

    Fields that ``columns`` names have columns of their own; a value other than a text, number or
    truth value is JSON in it.
    """

    name: str
    """Of the table."""
    record: type[Record]
    key: str
    """The field that a record is looked up by: the primary key."""
    order: str
    """The field by which records are read, the lowest first."""
    columns: tuple[str, ...]
    document: bool = True
    """Whether a further column has the whole record as JSON, from which it is read."""
    later: tuple[str, ...] = ()
    """Fields that the release before does not have: absent from the document by default."""
    prefix: str = ""
    """Keys are this and a number that counts up; empty where keys are names."""

    def row(self, key: str) -> Key:
        """Return the key of a row."""
        return self.name, key

    def key_of(self, record: Record) -> str:
        """Return what a record is looked up by."""
        key: str = getattr(record, self.key)
        return key

    def number(self, key: str) -> int:
        """Return the number in a key: 12 of ``o12``. Raises ValueError for another text."""
        return int(key.removeprefix(self.prefix))


class Records(Mapping[str, Record]):
    """The records of one kind by key, oldest first. Records are frozen: the methods replace them.

    Belongs to the loop.
    """

    def __init__(self, kind: Kind[Record]) -> None:
        self.kind = kind
        self._records: dict[str, Record] = {}
        self.number = 0
        """The number in the last key that was given out."""

    def __getitem__(self, key: str) -> Record:
        return self._records[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def restore(self, records: Iterable[Record], number: int = 0) -> None:
        """Take over what is stored, in its order, and the number of the last key."""
        kind, found = self.kind, list(records)
        if kind.prefix:
            found.sort(key=lambda record: kind.number(kind.key_of(record)))
            self.number = max([number, *(kind.number(kind.key_of(record)) for record in found)])
        for key in list(self):
            self.remove(key)
        for record in found:
            self.put(record)

    def next_key(self) -> str:
        """Return a key that no record has had."""
        self.number += 1
        return f"{self.kind.prefix}{self.number}"

    def put(self, record: Record) -> Record:
        """Insert or replace a record."""
        self._records[self.kind.key_of(record)] = record
        return record

    def change(self, key: str, **fields: Any) -> Record:
        """Replace some fields of a record."""
        return self.put(replace(self._records[key], **fields))  # type: ignore[type-var]

    def remove(self, key: str) -> Record | None:
        """Forget a record; return it, None for an unknown key."""
        return self._records.pop(key, None)

    def share_out(
        self, owner: Callable[[Record], str], *limits: Limit[Record]
    ) -> tuple[Record, ...]:
        """Forget what is beyond the limits, and return it; see ``surplus``."""
        gone = surplus(self.values(), owner, *limits)
        for record in gone:
            self.remove(self.kind.key_of(record))
        return gone
