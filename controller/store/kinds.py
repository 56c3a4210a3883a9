"""The tables of all kinds of kept records, and their documents, made from the declarations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, get_type_hints

import sqlalchemy as sa

from controller.state.kept.kinds import KINDS
from controller.state.kinds.kind import Kind
from controller.store.documents import Documents
from controller.store.meta import META, upsert

Record = TypeVar("Record")
_TYPES: Mapping[Any, type[sa.types.TypeEngine[Any]]] = {
    str: sa.Text,
    float: sa.Float,
    int: sa.BigInteger,
    bool: sa.Boolean,
}
"""Of columns; any other value is JSON."""


class KeptTable(Generic[Record]):
    """The table of one kind, one row for each record."""

    def __init__(self, kind: Kind[Record]) -> None:
        hints = get_type_hints(kind.record, include_extras=True)
        self._kind = kind
        self._columns = (kind.key, *kind.columns)
        self._json: dict[str, Documents[Any]] = {
            name: Documents(hints[name]) for name in self._columns if hints[name] not in _TYPES
        }
        self._document: Documents[Record] | None = (
            Documents(kind.record, kind.later) if kind.document else None
        )
        columns = [
            sa.Column(
                name,
                _TYPES.get(hints[name], sa.Text),
                primary_key=name == kind.key,
                nullable=False,
            )
            for name in self._columns
        ]
        if kind.document:
            columns.append(sa.Column("body", sa.Text, nullable=False))
        self.table = sa.Table(kind.name, META, *columns)

    def put(self, db: sa.Connection, records: Sequence[Record]) -> None:
        """Insert or replace records inside the caller's database transaction."""
        upsert(db, self.table, [self.row(record) for record in records])

    def drop(self, db: sa.Connection, keys: Sequence[str]) -> None:
        """Delete records inside the caller's database transaction."""
        if keys:
            db.execute(self.table.delete().where(self.table.c[self._kind.key].in_(keys)))

    def all(self, db: sa.Connection) -> tuple[Record, ...]:
        """Return every record, in order. ValueError, KeyError or TypeError for a damaged row."""
        rows = db.execute(sa.select(self.table).order_by(self.table.c[self._kind.order]))
        return tuple(self.read(row) for row in rows.mappings())

    def row(self, record: Record) -> dict[str, Any]:
        """Return a record as a row."""
        row = {name: getattr(record, name) for name in self._columns}
        for name, documents in self._json.items():
            row[name] = documents.write(row[name])
        if self._document is not None:
            row["body"] = self._document.write(record)
        return row

    def read(self, row: Mapping[Any, Any]) -> Record:
        """Read a row back. ValueError, KeyError or TypeError when it is damaged."""
        found = {name: row[name] for name in self._columns}
        for name, documents in self._json.items():
            found[name] = documents.read(found[name])
        if self._document is None:
            return self._kind.record(**found)
        return self._document.read(row["body"], beside=found)


TABLES: Mapping[str, KeptTable[Any]] = {kind.name: KeptTable(kind) for kind in KINDS}


def read_all(db: sa.Connection) -> dict[str, tuple[Any, ...]]:
    """Return all records by kind. ValueError, KeyError or TypeError for a damaged row."""
    return {name: table.all(db) for name, table in TABLES.items()}
