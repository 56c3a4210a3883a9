"""The one error the demo shows to people: a code, an object, a hint; never a stack trace."""

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
    """The experiment can not be run, or did not measure what it promises.

    ``code`` is for programs (each has one exit code), ``object`` names what it is about
    (``job/red-a-live-1f2e``), ``hint`` says what to do next.
    """

    def __init__(
        self, code: DemoErrorCode, message: str, *, object: str = "", hint: str = ""
    ) -> None:
        super().__init__(message)
        self.code: DemoErrorCode = code
        self.message = message
        self.object = object
        self.hint = hint
