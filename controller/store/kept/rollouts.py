"""The table of rollouts."""

from __future__ import annotations

import json
from dataclasses import asdict

import sqlalchemy as sa

from controller.state.kept.rollouts import RolloutRecord
from controller.state.records import MoveRecord
from controller.state.writes import DropRollouts, PutRollouts
from controller.store.meta import META, upsert

ROLLOUTS = sa.Table(
    "rollouts",
    META,
    sa.Column("id", sa.String(63), primary_key=True),
    sa.Column("started_at", sa.Float, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)


def apply(db: sa.Connection, write: PutRollouts | DropRollouts) -> None:
    """Carry out one write inside the caller's database transaction."""
    match write:
        case PutRollouts(records=records):
            upsert(db, ROLLOUTS, [_row(record) for record in records])
        case DropRollouts(ids=idents):
            db.execute(ROLLOUTS.delete().where(ROLLOUTS.c.id.in_(idents)))


def read(db: sa.Connection) -> tuple[RolloutRecord, ...]:
    """Return all rollouts. ValueError, KeyError or TypeError when a row is damaged."""
    return tuple(_read(row.body) for row in db.execute(sa.select(ROLLOUTS.c.body)))


def _row(record: RolloutRecord) -> dict[str, object]:
    body = asdict(record)
    body["batches"] = [
        [[move.endpoint, move.source, move.target] for move in batch] for batch in record.batches
    ]
    return {"id": record.id, "started_at": record.started_at, "body": json.dumps(body)}


def _read(text: str) -> RolloutRecord:
    body = json.loads(text)
    body["batches"] = tuple(tuple(MoveRecord(*move) for move in batch) for batch in body["batches"])
    body["transactions"] = tuple(body["transactions"])
    return RolloutRecord(**body)
