"""Ctrl-C while the command waits: what was begun goes on, and the user is told so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from console.cli.errors import CliError


@contextmanager
def goes_on(what: str, *, object: str, hint: str) -> Iterator[None]:
    """Wait for ``what`` ("job red"). Ctrl-C is a CliError that says how to follow and to end it."""
    try:
        yield
    except KeyboardInterrupt:
        raise CliError(
            "interrupted", f"{what} goes on without this command", object=object, hint=hint
        ) from None
