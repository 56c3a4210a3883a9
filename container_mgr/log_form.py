"""The form of the agent's log."""

from __future__ import annotations

import sys

import structlog


def log_form() -> list[structlog.typing.Processor]:
    """For people on a terminal, one JSON document a line elsewhere."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if sys.stderr.isatty():
        return [*shared, structlog.dev.ConsoleRenderer()]
    return [*shared, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
