"""The one error the controller shows to people: a code, an object, a hint; never a stack trace."""

from __future__ import annotations

from typing import Literal

from base.errors import ExplainedError

ErrorCode = Literal[
    "invalid", "forbidden", "not_found", "conflict", "unavailable", "failed", "timeout"
]


class ServiceError(ExplainedError):
    """A request could not be met; each code has one HTTP status."""

    code: ErrorCode

    def __init__(self, code: ErrorCode, message: str, *, object: str = "", hint: str = "") -> None:
        super().__init__(code, message, object=object, hint=hint)


class OutcomeUnknownError(ServiceError):
    """Whether a durable write was made is not known yet; the journal finds out."""


_LISTED = {"job": "jobs", "measurement": "measurements"}
"""What `lightloom get` calls the list of a kind of objects."""


def not_found(kind: str, name: str) -> ServiceError:
    """Return the refusal for an object that does not exist, or that the caller may not see."""
    hint = f"see `lightloom get {_LISTED[kind]}`" if kind in _LISTED else ""
    return ServiceError(
        "not_found", f"{kind} {name} does not exist", object=f"{kind}/{name}", hint=hint
    )
