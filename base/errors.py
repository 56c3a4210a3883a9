"""The shape of errors for people: a code, a message, an object and a hint, no stack trace."""

from __future__ import annotations


class ExplainedError(Exception):
    """A request could not be met.

    ``code`` is for programs (each has one exit code), ``object`` names what it is about
    (``job/red``), ``hint`` says what to do next.
    """

    def __init__(self, code: str, message: str, *, object: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.object = object
        self.hint = hint
