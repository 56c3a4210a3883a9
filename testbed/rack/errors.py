"""Defines the rack's error for users: a code, an object and a hint, without a stack trace."""

from __future__ import annotations

from typing import Literal

RackErrorCode = Literal["invalid", "forbidden", "conflict", "unavailable", "failed", "timeout"]


class RackError(Exception):
    """The rack cannot execute a request.

    ``code`` is for programs (each has one exit code), ``object`` names the affected part
    (``process/ocs0``), ``hint`` is what to do next.
    """

    def __init__(
        self, code: RackErrorCode, message: str, *, object: str = "", hint: str = ""
    ) -> None:
        super().__init__(message)
        self.code: RackErrorCode = code
        self.message = message
        self.object = object
        self.hint = hint
