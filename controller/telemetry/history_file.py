"""Stores the rows of a ring in a file, from a thread of its own: a slow, full or missing disk
loses history and does not stop the controller.

A mapped file would be shorter, but a page fault on a full disk raises SIGBUS, and one on a
hanging disk stops its thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from base.pools import Pool

log = structlog.get_logger(__name__)

MOST_WAITING = 128
"""Rows of one file that may wait for the disk; further rows are dropped."""
FLUSH_TIMEOUT_S = 5.0

Rows = NDArray[np.void]


class RowWriter:
    """One thread that writes rows to files in their order."""

    def __init__(self) -> None:
        self._pool = Pool("history")
        self._writing: set[asyncio.Future[None]] = set()
        self._failing = ""

    def put(self, file: RowFile, place: int, row: bytes) -> None:
        """Queue a row; drop it if too many rows of its file are waiting."""
        if len(file.waiting) >= MOST_WAITING:
            self._warn("the disk is too slow")
            return
        file.waiting[place] = row
        writing = self._pool.run(file.store, place, row)
        self._writing.add(writing)
        writing.add_done_callback(partial(self._written, file, place, row))

    async def flush(self) -> None:
        """Wait until all rows are written, at most FLUSH_TIMEOUT_S."""
        if self._writing:
            await asyncio.wait(self._writing, timeout=FLUSH_TIMEOUT_S)

    def _written(
        self, file: RowFile, place: int, row: bytes, writing: asyncio.Future[None]
    ) -> None:
        self._writing.discard(writing)
        if file.waiting.get(place) is row:  # else a newer one waits
            del file.waiting[place]
        try:
            writing.result()
            self._failing = ""
        except OSError as error:
            self._warn(str(error))

    def _warn(self, why: str) -> None:
        if why != self._failing:
            self._failing = why
            log.warning("history_not_written", error=why)


class RowFile:
    """A file of ``rows`` rows of one kind."""

    def __init__(self, path: Path, kind: np.dtype[Any], rows: int, writer: RowWriter) -> None:
        """Open the file; create it if it is missing or has another size. OSError."""
        self._kind = kind
        self._writer = writer
        self.waiting: dict[int, bytes] = {}
        """Rows that wait for the disk, by place; the latest of each."""
        size = rows * kind.itemsize
        fresh = not path.exists() or path.stat().st_size != size
        self._file = path.open("w+b" if fresh else "r+b", buffering=0)
        if fresh:
            self._file.truncate(size)  # sparse: unwritten rows use no disk

    def write(self, place: int, row: Rows) -> None:
        """Queue one row for writing."""
        self._writer.put(self, place, row.tobytes())

    def read(self, first: int, count: int) -> Rows:
        """Return ``count`` rows from place ``first``; rows that cannot be read are empty."""
        size = self._kind.itemsize
        try:
            data = bytearray(os.pread(self._file.fileno(), count * size, first * size))
        except OSError as error:
            log.warning("history_not_read", error=error.strerror)
            data = bytearray()
        data.extend(bytes(count * size - len(data)))
        for place, row in self.waiting.items():
            if first <= place < first + count:
                data[(place - first) * size : (place - first + 1) * size] = row
        return np.frombuffer(bytes(data), dtype=self._kind)

    def store(self, place: int, row: bytes) -> None:
        """Write one row immediately. OSError."""
        os.pwrite(self._file.fileno(), row, place * self._kind.itemsize)


def draft_of(path: Path) -> Path:
    """Return where the next content of a file is written."""
    return path.with_name(path.name + ".new")


def rewrite(
    path: Path,
    was: np.dtype[Any],
    now: np.dtype[Any],
    rows: int,
    changed: Callable[[Rows], Rows],
) -> None:
    """Draft a file of rows of one kind as rows of another, MOST_WAITING at a time. OSError.

    A file of another size gets no draft.
    """
    if not path.exists() or path.stat().st_size != rows * was.itemsize:
        return
    with path.open("rb") as old, draft_of(path).open("wb") as new:
        new.truncate(rows * now.itemsize)  # sparse, as a new one
        for place in range(0, rows, MOST_WAITING):
            found = np.frombuffer(old.read(MOST_WAITING * was.itemsize), dtype=was)
            if found["time"].any():
                new.seek(place * now.itemsize)
                new.write(changed(found).tobytes())
