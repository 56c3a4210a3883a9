"""The keys of the rows that memory holds: a durable write names them, and reads them when it is
made."""

from __future__ import annotations

from controller.state.writes import KeptRecord, key_of

Key = tuple[str, str]
"""A row: its kind and its name."""
FACTS: Key = ("facts", "")
ATTACHMENTS: Key = ("attachments", "")
DRAINS: Key = ("drains", "")
"""The drains, and the endpoints that get light back."""
UNKNOWN: Key = ("unknown", "")
"""The epochs that an older copy of the store may lack."""


def job(name: str) -> Key:
    """Return the key of a job's row."""
    return "job", name


def measurement(ident: str) -> Key:
    """Return the key of a measurement's row."""
    return "measurement", ident


def kept(kind: type[KeptRecord], ident: str) -> Key:
    """Return the key of the row of a record that is kept one row each."""
    return kind.__name__, ident


def of(record: KeptRecord) -> Key:
    """Return the key of such a record's row."""
    return kept(type(record), key_of(record))
