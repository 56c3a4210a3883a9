"""Defines the error of lanes for users: a code, an object and a hint, without a stack trace."""

from __future__ import annotations

from base.errors import ExplainedError


class LaneError(ExplainedError):
    """A lane cannot do what was asked."""
