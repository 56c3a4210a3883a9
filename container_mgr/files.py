"""Files that containers see: put there whole, and never through what a container left."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def put_in(directory: Path, name: str, text: str, mode: int = 0o444) -> None:
    """Put a whole file into a directory that a container may write as well.

    A reader sees the old file or the new one. The job may have left a link under that name: it
    is replaced, never followed. Raises OSError, and leaves nothing then.
    """
    descriptor, beside = tempfile.mkstemp(dir=directory)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            os.fchmod(descriptor, mode)
            file.write(text)
        Path(beside).replace(directory / name)
    except OSError:
        Path(beside).unlink(missing_ok=True)
        raise


def is_there(path: Path) -> bool:
    """Say whether a container left something under this name, whatever it is.

    A link is not followed: it could lead to a place where looking takes for ever, ends in an
    error, or tells the container what the machine has.
    """
    return os.path.lexists(path)
