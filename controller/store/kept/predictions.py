"""The table of predictions."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from controller.state.kept.predictions import PredictionRecord
from controller.store.meta import META, KeptTable

PREDICTIONS = sa.Table(
    "predictions",
    META,
    sa.Column("id", sa.String(63), primary_key=True),
    sa.Column("job", sa.String(63), nullable=False),
    sa.Column("made_at", sa.Float, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)


def _row(prediction: PredictionRecord) -> dict[str, object]:
    return {
        "id": prediction.id,
        "job": prediction.job,
        "made_at": prediction.made_at,
        "body": json.dumps(asdict(prediction)),
    }


def _read(row: sa.Row[Any]) -> PredictionRecord:
    body = json.loads(row.body)
    return PredictionRecord(**{**body, "basis": tuple(body["basis"])})


KEPT = KeptTable(PREDICTIONS, _row, _read, "made_at")
