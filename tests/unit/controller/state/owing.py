"""What a journal still owes to its store, for tests."""

from __future__ import annotations

from controller.state.journal import Journal


def owes(journal: Journal) -> bool:
    """Whether something is not durable yet, or the outcome of a commit is unknown."""
    return bool(journal._owed) or journal._late is not None
