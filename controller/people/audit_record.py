"""One record of the audit trail: its fields, its line in the file, its hash in the chain."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from controller.base.errors import ServiceError

START = "0" * 64
"""The ``prev`` of the first record."""
MAX_FIELD = 500


@dataclass(slots=True, frozen=True)
class AuditRecord:
    """One line. ``time`` is seconds since 1970, ``outcome`` an HTTP status.

    ``count`` is the number of similar requests, the last of them at ``time``.
    """

    seq: int
    time: float
    actor: str
    role: str
    token: str
    remote: str
    verb: str
    action: str
    object: str
    outcome: int
    epoch_before: int
    epoch_after: int
    prev: str = START
    hash: str = ""
    count: int = 1
    detail: str = ""
    """What was asked for, beyond the object; empty for most operations."""


_FIELDS = frozenset(field.name for field in fields(AuditRecord))
_NEEDED = _FIELDS - {"count", "detail"}


def record_hash(record: AuditRecord) -> str:
    """Return SHA-256 over all fields of ``record`` except its own hash."""
    return hash_of(body_of(record))


def hash_of(body: Mapping[str, Any]) -> str:
    """Return the expected ``hash`` of a line that was read."""
    hashed = {key: value for key, value in body.items() if key != "hash"}
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def body_of(record: AuditRecord) -> dict[str, Any]:
    """Return the fields of a record's line; a ``count`` of 1 and no ``detail`` are left out."""
    body = asdict(record)
    if record.count == 1:
        del body["count"]
    if not record.detail:
        del body["detail"]
    return body


def line_of(record: AuditRecord) -> str:
    """Return the line of a record."""
    return json.dumps(body_of(record), separators=(",", ":"), ensure_ascii=True) + "\n"


def parsed(line: str | bytes) -> dict[str, Any]:
    """Return the fields of a line. ValueError if it is not a record."""
    try:
        body = json.loads(line)
    except ValueError:  # not text, or not JSON
        body = None
    if (
        not isinstance(body, dict)
        or not _NEEDED <= body.keys() <= _FIELDS
        or type(body["seq"]) is not int
        or not isinstance(body["hash"], str)
    ):
        raise ValueError("it is not a record")
    return body


def clipped(text: str) -> str:
    """Return ``text`` shortened to the length of a field."""
    return text if len(text) <= MAX_FIELD else text[: MAX_FIELD - 1] + "…"


def unwritten(where: object, message: str, *, hint: str) -> ServiceError:
    """Return the error for a record that was not written."""
    return ServiceError("failed", message, object=f"file/{where}", hint=hint)
