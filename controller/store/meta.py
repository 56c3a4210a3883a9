"""What all tables share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import sqlalchemy as sa

META = sa.MetaData()
Record = TypeVar("Record")


@dataclass(slots=True, frozen=True)
class KeptTable(Generic[Record]):
    """The table of one kind of records, one row each; its primary key is their key."""

    table: sa.Table
    row: Callable[[Record], Mapping[str, Any]]
    """Returns a record as a row."""
    read: Callable[[sa.Row[Any]], Record]
    """Reads a row. ValueError, KeyError or TypeError when it is damaged."""
    order: str
    """The column by which they are read."""

    def put(self, db: sa.Connection, records: Sequence[Record]) -> None:
        """Insert or replace records inside the caller's database transaction."""
        upsert(db, self.table, [self.row(record) for record in records])

    def drop(self, db: sa.Connection, keys: Sequence[str]) -> None:
        """Delete records inside the caller's database transaction."""
        (key,) = self.table.primary_key.columns
        if keys:
            db.execute(self.table.delete().where(key.in_(keys)))

    def all(self, db: sa.Connection) -> tuple[Record, ...]:
        """Return every record. ValueError, KeyError or TypeError when a row is damaged."""
        rows = db.execute(sa.select(self.table).order_by(self.table.c[self.order]))
        return tuple(self.read(row) for row in rows)


def upsert(db: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Delete and insert: the way to replace a row that every database supports."""
    (key,) = table.primary_key.columns
    latest = {row[key.name]: row for row in rows}
    if latest:
        old = table.delete().where(key == sa.bindparam("old"))
        db.execute(old, [{"old": name} for name in latest])
        db.execute(table.insert(), list(latest.values()))
