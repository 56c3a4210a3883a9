"""The table of recoveries."""

from __future__ import annotations

import json
from dataclasses import asdict

import sqlalchemy as sa

from controller.state.kept.recoveries import RecoveryRecord
from controller.state.writes import DropRecoveries, PutRecoveries
from controller.store.meta import META, upsert

RECOVERIES = sa.Table(
    "recoveries",
    META,
    sa.Column("id", sa.String(63), primary_key=True),
    sa.Column("job", sa.String(63), nullable=False),
    sa.Column("failed_at", sa.Float, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)


def apply(db: sa.Connection, write: PutRecoveries | DropRecoveries) -> None:
    """Carry out one write inside the caller's database transaction."""
    match write:
        case PutRecoveries(records=records):
            upsert(db, RECOVERIES, [_row(record) for record in records])
        case DropRecoveries(ids=idents):
            db.execute(RECOVERIES.delete().where(RECOVERIES.c.id.in_(idents)))


def read(db: sa.Connection) -> tuple[RecoveryRecord, ...]:
    """Return all recoveries. ValueError, KeyError or TypeError when a row is damaged."""
    return tuple(_read(row.body) for row in db.execute(sa.select(RECOVERIES.c.body)))


def _row(record: RecoveryRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "job": record.job,
        "failed_at": record.failed_at,
        "body": json.dumps(asdict(record)),
    }


def _read(text: str) -> RecoveryRecord:
    body = json.loads(text)
    body |= {name: tuple(body[name]) for name in ("objects", "dead")}
    return RecoveryRecord(**body)
