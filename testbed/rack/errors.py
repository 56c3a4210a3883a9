"""Defines the rack's error for users: a code, an object and a hint, without a stack trace."""

from __future__ import annotations

from base.errors import ExplainedError


class RackError(ExplainedError):
    """The rack cannot execute a request."""
