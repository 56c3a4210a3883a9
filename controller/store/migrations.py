"""Brings a database of an older release to the present tables, in the caller's transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import sqlalchemy as sa

from controller.store.meta import META
from controller.store.tables import TRANSACTIONS

_VIEW_ONLY = ("waiting_for", "how_to_stop")


def add_columns(db: sa.Connection) -> None:
    """Add the columns that a table lacks. Each has a default, so that the release before, which
    does not name it, goes on with the store."""
    there = sa.inspect(db)
    for table in META.sorted_tables:
        names = {column["name"] for column in there.get_columns(table.name)}
        for column in table.columns:
            if column.name not in names:
                added = sa.schema.CreateColumn(column).compile(dialect=db.dialect)
                db.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {added}")


def migrate(db: sa.Connection, version: int) -> None:
    """Migrate from ``version``, step by step. ValueError when a row is damaged."""
    for step in range(version, max(_STEPS) + 1):
        _STEPS[step](db)


def _transactions_as_records(db: sa.Connection) -> None:
    """1 to 2: transactions were documents of the REST schema; jobs' rows are the same."""
    for row in db.execute(sa.select(TRANSACTIONS)).all():
        body = json.loads(row.body)
        for name in _VIEW_ONLY:
            body.pop(name, None)
        body["moves"] = [
            {"endpoint": move["endpoint"], "source": move["from"], "target": move["to"]}
            for move in body["moves"]
        ]
        update = TRANSACTIONS.update().where(TRANSACTIONS.c.id == row.id)
        db.execute(update.values(body=json.dumps(body)))


_STEPS: Mapping[int, Callable[[sa.Connection], None]] = {1: _transactions_as_records}
"""By the version that each step starts from."""
