"""The envelope of a finished measurement as JSON, bounded. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from controller.base.texts import clipped, unsound_at
from measure.envelope import VERSION, Body, Measurement, Row

MOST_RESULT_BYTES = 4 * 2**20
"""Of one result; rows beyond it are left out."""
MOST_REASONS = 50
_LISTS = ("rows", "groups", "anomalies", "fits")


@dataclass(slots=True, frozen=True)
class StoredResult:
    """A result as the store keeps it."""

    text: str
    invalid_because: tuple[str, ...]


def written(measurement: Measurement) -> StoredResult:
    """Return a result as JSON. ValueError when it has values that JSON or Unicode lack.

    Rows are left out from the end of the longest list until the text fits; ``summary`` then has
    their number as ``rows_left_out``.
    """
    document = _document(measurement)
    if (where := unsound_at(document)) is not None:
        raise ValueError(f"{clipped(where)} is not valid text")
    text = _text(document)
    left_out = 0
    while len(text) > MOST_RESULT_BYTES:
        longest = max(_LISTS, key=lambda name: len(document[name]))
        rows = document[longest]
        if not rows:
            raise ValueError(f"it takes {len(text)} bytes, the limit is {MOST_RESULT_BYTES}")
        kept = min(len(rows) * MOST_RESULT_BYTES // len(text), len(rows) - 1)
        left_out += len(rows) - kept
        document[longest] = rows[:kept]
        document["summary"] = {**document["summary"], "rows_left_out": left_out}
        text = _text(document)
    return StoredResult(text, tuple(document["invalid_because"]))


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def _document(measurement: Measurement) -> dict[str, Any]:
    body: Body = measurement.body
    reasons = [clipped(reason, 300) for reason in dict.fromkeys(body.invalid_because)]
    if len(reasons) > MOST_REASONS:
        reasons = [*reasons[: MOST_REASONS - 1], f"and {len(reasons) - MOST_REASONS + 1} more"]
    document: dict[str, Any] = {
        "kind": "measurement",
        "version": VERSION,
        "type": measurement.type,
        "id": measurement.id,
        "jobs": list(measurement.jobs),
        "source": measurement.source,
        "started_at": measurement.started_at,
        "finished_at": measurement.finished_at,
        "fabric_epoch": measurement.fabric_epoch,
        "endpoints": list(measurement.endpoints),
        "homes": dict(measurement.homes),
        "settings": dict(measurement.settings),
        "seed": measurement.seed,
        "tool": asdict(body.tool),
        "environment": asdict(measurement.environment),
        "summary": dict(body.summary),
        "valid": not reasons,
        "invalid_because": reasons,
    }
    document |= {name: _rows(getattr(body, name)) for name in _LISTS}
    normal: dict[str, Any] = json.loads(json.dumps(document, allow_nan=False, default=_plain))
    return normal


def _rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [dict(row) for row in rows]


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | set | frozenset):
        return list(value)
    raise ValueError(f"{type(value).__name__} has no form in JSON")
