"""The tables of all kinds of kept records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from controller.state.kept.checkpoints import CheckpointRecord
from controller.state.kept.comms import CommsRecord
from controller.state.kept.predictions import PredictionRecord
from controller.state.kept.recoveries import RecoveryRecord
from controller.state.kept.rollouts import RolloutRecord
from controller.state.records import Notice, Quarantine
from controller.state.writes import KeptRecord
from controller.store.kept import (
    checkpoints,
    comms,
    notices,
    predictions,
    quarantine,
    recoveries,
    rollouts,
)
from controller.store.meta import KeptTable

Record = TypeVar("Record", bound=KeptRecord)

_TABLES: Mapping[type[Any], KeptTable[Any]] = {
    Quarantine: quarantine.KEPT,
    Notice: notices.KEPT,
    PredictionRecord: predictions.KEPT,
    CommsRecord: comms.KEPT,
    CheckpointRecord: checkpoints.KEPT,
    RecoveryRecord: recoveries.KEPT,
    RolloutRecord: rollouts.KEPT,
}


def put(db: sa.Connection, records: Sequence[KeptRecord]) -> None:
    """Insert or replace records of one kind inside the caller's database transaction."""
    if records:
        _TABLES[type(records[0])].put(db, records)


def drop(db: sa.Connection, kind: type[KeptRecord], keys: Sequence[str]) -> None:
    """Delete records of one kind inside the caller's database transaction."""
    _TABLES[kind].drop(db, keys)


def read(db: sa.Connection, kind: type[Record]) -> tuple[Record, ...]:
    """Return all records of one kind. ValueError, KeyError or TypeError for a damaged row."""
    found: tuple[Record, ...] = _TABLES[kind].all(db)
    return found
