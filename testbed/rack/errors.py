"""The one error the rack shows to people: a code, an object, a hint; never a stack trace."""

from __future__ import annotations

from typing import Literal

RackErrorCode = Literal["invalid", "forbidden", "conflict", "unavailable", "failed", "timeout"]


class RackError(Exception):
    """The rack can not do what was asked.

    ``code`` is for programs (each has one exit code), ``object`` names the part it is about
    (``process/ocs0``), ``hint`` says what to do next.
    """

    def __init__(
        self, code: RackErrorCode, message: str, *, object: str = "", hint: str = ""
    ) -> None:
        super().__init__(message)
        self.code: RackErrorCode = code
        self.message = message
        self.object = object
        self.hint = hint
