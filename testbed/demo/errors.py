"""Defines the demo's error for users: a code, an object and a hint, without a stack trace."""

from __future__ import annotations

from base.errors import ExplainedError


class DemoError(ExplainedError):
    """The experiment cannot run, or its measurement is not valid."""
