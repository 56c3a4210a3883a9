"""Migrates a database of an older schema to the present one, in the caller's transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import sqlalchemy as sa

from controller.store.tables import TRANSACTIONS

_VIEW_ONLY = ("waiting_for", "how_to_stop")


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
