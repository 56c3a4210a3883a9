"""The table of notices that wait for their receivers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from controller.state.records import Notice
from controller.store.meta import META, KeptTable

NOTICES = sa.Table(
    "notices",
    META,
    sa.Column("id", sa.String(63), primary_key=True),
    sa.Column("receiver", sa.String(63), nullable=False),
    sa.Column("job", sa.String(63), nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
)


def _read(row: sa.Row[Any]) -> Notice:
    return Notice(
        id=row.id,
        receiver=row.receiver,
        job=row.job,
        body=row.body,
        created_at=row.created_at,
    )


KEPT = KeptTable(NOTICES, asdict, _read, "created_at")
