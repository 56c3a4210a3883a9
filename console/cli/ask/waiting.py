"""Ctrl-C while the command waits: what was begun goes on, and a message reports it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from console.cli.errors import CliError


@contextmanager
def goes_on(what: str, *, object: str, hint: str) -> Iterator[None]:
    """Wait for ``what`` ("job red"). Ctrl-C is a CliError with how to follow and end it."""
    try:
        yield
    except KeyboardInterrupt:
        raise CliError(
            "interrupted", f"{what} goes on without this command", object=object, hint=hint
        ) from None
