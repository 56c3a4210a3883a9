"""The table of measurements: one row each, with its result where it has one."""

from __future__ import annotations

import sqlalchemy as sa

from controller.state.kept.measurements import MeasurementRecord
from controller.state.writes import PutMeasurement
from controller.store.documents import Documents
from controller.store.meta import META

MEASUREMENTS = sa.Table(
    "measurements",
    META,
    sa.Column("id", sa.String(63), primary_key=True),
    sa.Column("type", sa.String(16), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("submitted_at", sa.Float, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("result", sa.Text),
)

DOCUMENTS: Documents[MeasurementRecord] = Documents(MeasurementRecord)


def put(db: sa.Connection, write: PutMeasurement) -> None:
    """Insert or replace a row; without a new result it keeps the one that it has."""
    record = write.record
    values = {
        "type": record.type,
        "state": record.state,
        "submitted_at": record.submitted_at,
        "body": DOCUMENTS.write(record),
    }
    if write.result is not None:
        values["result"] = write.result
    found = db.execute(MEASUREMENTS.update().where(MEASUREMENTS.c.id == record.id).values(**values))
    if not found.rowcount:
        db.execute(MEASUREMENTS.insert(), [{"result": None, **values, "id": record.id}])


def read_measurements(db: sa.Connection) -> tuple[MeasurementRecord, ...]:
    """Read all of them, without results. ValueError, KeyError or TypeError for a damaged row."""
    return tuple(DOCUMENTS.read(row.body) for row in db.execute(sa.select(MEASUREMENTS.c.body)))


def read_result(db: sa.Connection, ident: str) -> str | None:
    """Return a measurement's result as JSON; None without one."""
    wanted = sa.select(MEASUREMENTS.c.result).where(MEASUREMENTS.c.id == ident)
    found: str | None = db.execute(wanted).scalar()
    return found
