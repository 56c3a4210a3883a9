"""The table of predictions."""

from __future__ import annotations

import json
from dataclasses import asdict

import sqlalchemy as sa

from controller.state.kept.predictions import PredictionRecord
from controller.state.writes import DropPredictions, PutPredictions
from controller.store.meta import META, upsert

PREDICTIONS = sa.Table(
    "predictions",
    META,
    sa.Column("id", sa.String(63), primary_key=True),
    sa.Column("job", sa.String(63), nullable=False),
    sa.Column("made_at", sa.Float, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)


def apply(db: sa.Connection, write: PutPredictions | DropPredictions) -> None:
    """Carry out one write inside the caller's database transaction."""
    match write:
        case PutPredictions(predictions=predictions):
            upsert(db, PREDICTIONS, [_row(prediction) for prediction in predictions])
        case DropPredictions(ids=idents):
            db.execute(PREDICTIONS.delete().where(PREDICTIONS.c.id.in_(idents)))


def read(db: sa.Connection) -> tuple[PredictionRecord, ...]:
    """Return all predictions. ValueError, KeyError or TypeError when a row is damaged."""
    rows = db.execute(sa.select(PREDICTIONS).order_by(PREDICTIONS.c.made_at))
    return tuple(_read(row.body) for row in rows)


def _row(prediction: PredictionRecord) -> dict[str, object]:
    return {
        "id": prediction.id,
        "job": prediction.job,
        "made_at": prediction.made_at,
        "body": json.dumps(asdict(prediction)),
    }


def _read(text: str) -> PredictionRecord:
    body = json.loads(text)
    return PredictionRecord(**{**body, "basis": tuple(body["basis"])})
