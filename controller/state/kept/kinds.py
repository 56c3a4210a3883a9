"""The kinds of records that are kept one row each. A new kind is declared, and named here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.state.kept.checkpoints import CHECKPOINTS
from controller.state.kept.comms import COMMS
from controller.state.kept.predictions import PREDICTIONS
from controller.state.kept.profiles import PROFILES
from controller.state.kept.recoveries import RECOVERIES
from controller.state.kept.rollouts import ROLLOUTS
from controller.state.kinds.kind import Key, Kind
from controller.state.records import NOTICES, QUARANTINE

KINDS: tuple[Kind[Any], ...] = (
    QUARANTINE,
    NOTICES,
    PREDICTIONS,
    COMMS,
    CHECKPOINTS,
    RECOVERIES,
    ROLLOUTS,
    PROFILES,
)
_BY_TYPE: Mapping[type[Any], Kind[Any]] = {kind.record: kind for kind in KINDS}


def kind_of(record: object) -> Kind[Any]:
    """Return the kind of a record. Raises KeyError for what is kept otherwise."""
    return _BY_TYPE[type(record)]


def row_of(record: object) -> Key:
    """Return the key of a record's row."""
    kind = kind_of(record)
    return kind.row(kind.key_of(record))
