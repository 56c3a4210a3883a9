"""Turns errors of site, state and job files into errors of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from console.cli.errors import CliError, usage

_SHOWN = 20
"""Problems shown of one file; a large file can have one in every line."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors while ``path`` is read into a CliError with exit code 2."""
    from sitefile import SiteFileError  # noqa: PLC0415 - start-up time

    try:
        yield
    except SiteFileError as error:
        shown = error.problems[:_SHOWN]
        lines = [f"{p.path}: {p.message}" if p.path else p.message for p in shown]
        if len(error.problems) > _SHOWN:
            lines.append(f"… and {len(error.problems) - _SHOWN} more")
        fixes = "; ".join(dict.fromkeys(p.fix for p in shown if p.fix))
        raise CliError(
            "invalid",
            f"{error.file} cannot be used\n" + "\n".join(lines),
            object=error.file,
            hint=fixes,
        ) from None
    except UnicodeDecodeError:
        raise CliError(
            "invalid", f"{path} is not text in UTF-8", object=str(path), hint="save it as UTF-8"
        ) from None
    except OSError as error:
        raise usage(f"{path} cannot be read: {error.strerror or error}") from None
