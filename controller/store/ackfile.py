"""The number of the last acknowledged commit, beside the database.

SQLite takes a damaged frame in its write-ahead log for the end of the log, and silently drops every
commit behind it. That is right for a tail torn by a crash, and wrong for acknowledged commits. This
file distinguishes the two: it is written after each commit is durable and never before, so a
database behind it has lost something. The file is not synchronised: after a power cut it may be too
old, which is harmless.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

_RECORD = struct.Struct(">QI")


class AckFile:
    """One number with its checksum."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def read(self) -> int:
        """Return the number; 0 when the file is missing or its checksum is wrong."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return 0
        if len(data) != _RECORD.size:
            return 0
        number, check = _RECORD.unpack(data)
        return int(number) if check == zlib.crc32(data[:8]) else 0

    def write(self, number: int) -> None:
        """Replace the number. A refusal by the disk is not an error: an old number is harmless."""
        data = struct.pack(">Q", number)
        try:
            if self._fd is None:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._fd, data + struct.pack(">I", zlib.crc32(data)), 0)
        except OSError as error:
            log.warning("acknowledged_commit_not_noted", error=error.strerror)

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
