"""Errors of the command line: code, message, object, hint and an exit code."""

from __future__ import annotations

from collections.abc import Mapping

from base.errors import ExplainedError

EXIT_CODES: Mapping[str, int] = {
    "failed": 1,
    "unavailable": 1,
    "invalid": 2,
    "usage": 2,
    "unmet": 3,
    "forbidden": 4,
    "not_found": 5,
    "conflict": 6,
    "unreachable": 7,
    "timeout": 124,
    "interrupted": 130,
}
"""The exit codes that scripts rely on; 3 also means "changes pending" for ``plan``.

``exec`` ends with its command's exit code; with these if it does not run."""
CHANGES_PENDING = 3


class CliError(ExplainedError):
    """A verb failed. ``code`` is one of :data:`EXIT_CODES`."""

    @property
    def exit_code(self) -> int:
        """The process's exit code for this error."""
        return EXIT_CODES.get(self.code, 1)

    def document(self) -> dict[str, str]:
        """Return the error as ``-o json`` prints it on stderr."""
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "object": self.object,
        }


def usage(message: str, hint: str = "", *, object: str = "") -> CliError:
    """Return the error for an invalid command line."""
    return CliError("usage", message, object=object, hint=hint)
