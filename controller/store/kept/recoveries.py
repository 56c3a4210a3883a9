"""The table of recoveries."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from controller.state.kept.recoveries import RecoveryRecord
from controller.store.meta import META, KeptTable

RECOVERIES = sa.Table(
    "recoveries",
    META,
    sa.Column("id", sa.String(63), primary_key=True),
    sa.Column("job", sa.String(63), nullable=False),
    sa.Column("failed_at", sa.Float, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)


def _row(record: RecoveryRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "job": record.job,
        "failed_at": record.failed_at,
        "body": json.dumps(asdict(record)),
    }


def _read(row: sa.Row[Any]) -> RecoveryRecord:
    body = json.loads(row.body)
    body |= {name: tuple(body[name]) for name in ("objects", "dead")}
    return RecoveryRecord(**body)


KEPT = KeptTable(RECOVERIES, _row, _read, "failed_at")
