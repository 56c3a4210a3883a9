"""Defines the error of lanes for users: a code, an object and a hint, without a stack trace."""

from __future__ import annotations

from typing import Literal

LaneErrorCode = Literal["invalid", "forbidden", "conflict", "unavailable", "failed", "not_found"]


class LaneError(Exception):
    """A lane cannot do what was asked; code, object and hint are as in ``RackError``."""

    def __init__(self, code: LaneErrorCode, message: str, *, object: str, hint: str = "") -> None:
        super().__init__(message)
        self.code: LaneErrorCode = code
        self.message = message
        self.object = object
        self.hint = hint
