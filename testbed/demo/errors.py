"""Defines the demo's error for users: a code, an object and a hint, without a stack trace."""

from __future__ import annotations

from typing import Literal

DemoErrorCode = Literal[
    "invalid",
    "forbidden",
    "not_found",
    "conflict",
    "unavailable",
    "failed",
    "timeout",
    "unreachable",
]


class DemoError(Exception):
    """The experiment cannot run, or its measurement is not valid.

    ``code`` is for programs (each has one exit code), ``object`` names the affected object
    (``job/red-a-live-1f2e``), ``hint`` is what to do next.
    """

    def __init__(
        self, code: DemoErrorCode, message: str, *, object: str = "", hint: str = ""
    ) -> None:
        super().__init__(message)
        self.code: DemoErrorCode = code
        self.message = message
        self.object = object
        self.hint = hint
