"""The table of what ended jobs communicated."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from controller.state.kept.comms import CommsRecord
from controller.store.meta import META, KeptTable
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


def _read(row: sa.Row[Any]) -> CommsRecord:
    facts = json.loads(row.facts)
    return CommsRecord(
        job=row.job,
        submitted_at=row.submitted_at,
        kept_at=row.kept_at,
        ranks=row.ranks,
        calls=row.calls,
        body=row.body,
        facts=None if facts is None else StepFacts(**facts),
    )


KEPT = KeptTable(COMMS, _row, _read, "kept_at")
