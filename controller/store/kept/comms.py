"""The table of what ended jobs communicated."""

from __future__ import annotations

import json
from dataclasses import asdict

import sqlalchemy as sa

from controller.state.kept.comms import CommsRecord
from controller.state.writes import DropComms, PutComms
from controller.store.meta import META, upsert
from scheduler.steptime.facts import StepFacts

COMMS = sa.Table(
    "comms",
    META,
    sa.Column("job", sa.String(63), primary_key=True),
    sa.Column("submitted_at", sa.Float, nullable=False),
    sa.Column("kept_at", sa.Float, nullable=False),
    sa.Column("ranks", sa.Integer, nullable=False),
    sa.Column("calls", sa.BigInteger, nullable=False),
    sa.Column("facts", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)


def apply(db: sa.Connection, write: PutComms | DropComms) -> None:
    """Carry out one write inside the caller's database transaction."""
    match write:
        case PutComms(records=records):
            upsert(db, COMMS, [_row(record) for record in records])
        case DropComms(jobs=jobs):
            db.execute(COMMS.delete().where(COMMS.c.job.in_(jobs)))


def read(db: sa.Connection) -> tuple[CommsRecord, ...]:
    """Return all records. ValueError, KeyError or TypeError when a row is damaged."""
    return tuple(
        CommsRecord(
            job=row.job,
            submitted_at=row.submitted_at,
            kept_at=row.kept_at,
            ranks=row.ranks,
            calls=row.calls,
            body=row.body,
            facts=None if (facts := json.loads(row.facts)) is None else StepFacts(**facts),
        )
        for row in db.execute(sa.select(COMMS))
    )


def _row(record: CommsRecord) -> dict[str, object]:
    return {
        "job": record.job,
        "submitted_at": record.submitted_at,
        "kept_at": record.kept_at,
        "ranks": record.ranks,
        "calls": record.calls,
        "facts": json.dumps(record.facts and asdict(record.facts)),
        "body": record.body,
    }
