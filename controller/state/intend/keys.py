"""The keys of the rows that memory holds: a durable write names them, and reads them when it is
made."""

from __future__ import annotations

from controller.state.kinds.kind import Key

FACTS: Key = ("facts", "")
ATTACHMENTS: Key = ("attachments", "")
DRAINS: Key = ("drains", "")
"""The drains, and the endpoints that get light back."""
UNKNOWN: Key = ("unknown", "")
"""The epochs that an older copy of the store may lack."""


def job(name: str) -> Key:
    """Return the key of a job's row."""
    return "job", name
