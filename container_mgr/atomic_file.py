"""Replaces a file in one step: a reader sees the old text or the new text, never a part."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write(path: Path, text: str, *, mode: int = 0o644, durable: bool = True) -> None:
    """Replace the file at ``path``, whose directory must exist. Raises OSError.

    A ``durable`` file survives a power cut once this returns: its text and its new name are
    synchronised to the disk. A link at ``path`` is replaced, never followed. After an error the
    old file is still there, except when only the last step, synchronising the directory,
    failed: then the new file is there but may not survive a power cut. No temporary file stays.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, mode)
            file.write(text)
            if durable:
                file.flush()
                os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
