"""The table of what must not be used."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from controller.state.records import Quarantine
from controller.store.meta import META, KeptTable

QUARANTINE = sa.Table(
    "quarantine",
    META,
    sa.Column("object", sa.String(127), primary_key=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("since", sa.Float, nullable=False),
)


def _read(row: sa.Row[Any]) -> Quarantine:
    return Quarantine(object=row.object, reason=row.reason, since=row.since)


KEPT = KeptTable(QUARANTINE, asdict, _read, "object")
