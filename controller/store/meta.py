"""What all tables share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

META = sa.MetaData()


def upsert(db: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Delete and insert: the way to replace a row that every database supports."""
    (key,) = table.primary_key.columns
    latest = {row[key.name]: row for row in rows}
    if latest:
        old = table.delete().where(key == sa.bindparam("old"))
        db.execute(old, [{"old": name} for name in latest])
        db.execute(table.insert(), list(latest.values()))
