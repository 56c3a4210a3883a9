"""The table of rollouts."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from controller.state.kept.rollouts import RolloutRecord
from controller.state.records import MoveRecord
from controller.store.meta import META, KeptTable

ROLLOUTS = sa.Table(
    "rollouts",
    META,
    sa.Column("id", sa.String(63), primary_key=True),
    sa.Column("started_at", sa.Float, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)


def _row(record: RolloutRecord) -> dict[str, object]:
    body = asdict(record)
    body["batches"] = [
        [[move.endpoint, move.source, move.target] for move in batch] for batch in record.batches
    ]
    if not record.room:  # an older release does not know it
        del body["room"]
    return {"id": record.id, "started_at": record.started_at, "body": json.dumps(body)}


def _read(row: sa.Row[Any]) -> RolloutRecord:
    body = json.loads(row.body)
    body["batches"] = tuple(tuple(MoveRecord(*move) for move in batch) for batch in body["batches"])
    body["transactions"] = tuple(body["transactions"])
    body["room"] = tuple(body.get("room", ()))  # absent in those of older versions
    return RolloutRecord(**body)


KEPT = KeptTable(ROLLOUTS, _row, _read, "started_at")
