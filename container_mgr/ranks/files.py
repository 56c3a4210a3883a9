"""Files that containers see, put there whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def put_in(directory: Path, name: str, text: str, mode: int = 0o444) -> None:
    """Put a whole file into a directory; a reader sees the old file or the new one.

    A link under that name is replaced, never followed. Raises OSError, and leaves nothing then.
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
