"""Reads what containers wrote, from the engine's json-file logs.

The files are read directly: that keeps stream and time of every line, costs the engine
nothing and works while it hangs. They are copied aside when a container is removed, so
that a cancelled job's last words stay readable.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from container_mgr.inspection import parse_time
from container_mgr.values import RankKey

KEPT_CONTAINERS = 64
"""How many removed containers' logs are kept."""

_BATCH = 512
_LINE_LIMIT = 64 * 1024
_POLL_S = 0.2
_SUFFIX = "-json.log"


@dataclass(slots=True, frozen=True)
class Line:
    """One line of a program's output. Seconds since 1970."""

    time: float
    stream: str
    text: str


class Joiner:
    """Puts together what the engine splits (at 16 KiB) and cuts what never ends."""

    def __init__(self) -> None:
        self._parts: dict[str, str] = {}

    def feed(self, raw: bytes) -> Line | None:
        """Take one record of the file; return a line once it is whole. Skips broken records."""
        try:
            record = json.loads(raw)
            stream, text, time = record["stream"], record["log"], parse_time(record["time"])
        except (ValueError, KeyError, TypeError):
            return None
        text = self._parts.pop(stream, "") + text
        if not text.endswith("\n") and len(text) < _LINE_LIMIT:
            self._parts[stream] = text
            return None
        return Line(time or 0.0, stream, text.rstrip("\n"))


def files(log: Path) -> list[Path]:
    """The rotated files of ``log``, oldest first, and ``log`` itself."""
    rotated = [p for p in log.parent.glob(f"{log.name}.*") if p.suffix[1:].isdecimal()]
    rotated.sort(key=lambda p: int(p.suffix[1:]), reverse=True)
    return [p for p in (*rotated, log) if p.exists()]


async def read(
    log: Path, *, tail: int | None, follow: bool, alive: Callable[[], Awaitable[bool]]
) -> AsyncIterator[list[Line]]:
    """Yield batches of lines; with ``follow`` until ``alive`` says no and all is read.

    ``alive`` is whether anybody may still write: an engine does for a while after a program's end.
    """
    *rotated, current = await asyncio.to_thread(files, log) or [log]
    joiner = Joiner()
    last: deque[Line] = deque(maxlen=tail)
    for path in rotated:
        with suppress(OSError), path.open("rb") as older:
            last.extend(_lines(older, joiner))
    handle: BinaryIO = io.BytesIO()
    with suppress(OSError):
        handle = current.open("rb")
    try:
        last.extend(await asyncio.to_thread(lambda: list(_lines(handle, joiner))))
        for batch in _batches(last):
            yield batch
        while follow:
            # Both asked before the read, so that the last words are not missed.
            living, replaced = await alive(), _replaced(handle, log)
            lines = deque(_lines(handle, joiner))
            quiet = not lines
            for batch in _batches(lines):
                yield batch
            if replaced:
                try:
                    newer = log.open("rb")
                except FileNotFoundError:  # removed meanwhile
                    return
                handle.close()
                handle = newer
            elif quiet and not living:
                return
            elif quiet:
                await asyncio.sleep(_POLL_S)
    finally:
        handle.close()


class Archive:
    """Logs of removed containers, newest kept."""

    def __init__(self, directory: Path) -> None:
        self._dir = directory
        self._lock = threading.Lock()  # a job's ranks end together, each in a thread

    def store(self, key: RankKey, log: Path) -> None:
        """Copy a container's logs here; what cannot be read is not kept."""
        target = self._dir / key.container
        shutil.rmtree(target, ignore_errors=True)  # an earlier life of the same rank
        target.mkdir(parents=True, exist_ok=True)
        for path in files(log):
            with suppress(OSError):
                shutil.copy2(path, target / path.name.replace(log.name, f"rank{_SUFFIX}"))
        with self._lock:
            kept = sorted(self._dir.iterdir(), key=lambda p: p.stat().st_mtime)
            for old in kept[:-KEPT_CONTAINERS]:
                shutil.rmtree(old, ignore_errors=True)

    def find(self, job: str, rank: int) -> Path | None:
        """The log of the newest epoch of a removed rank."""
        prefix = RankKey(job, rank, 0).container.removesuffix("0")
        epochs = {
            int(p.name.removeprefix(prefix)): p
            for p in self._dir.glob(f"{prefix}*")
            if p.name.removeprefix(prefix).isdecimal()
        }
        return epochs[max(epochs)] / f"rank{_SUFFIX}" if epochs else None


def _lines(handle: BinaryIO, joiner: Joiner) -> Iterator[Line]:
    while True:
        raw = handle.readline()
        if not raw.endswith(b"\n"):  # the engine is still writing this record
            handle.seek(-len(raw), 1)
            return
        line = joiner.feed(raw)
        if line is not None:
            yield line


def _batches(lines: deque[Line]) -> Iterator[list[Line]]:
    while lines:
        yield [lines.popleft() for _ in range(min(_BATCH, len(lines)))]


def _replaced(handle: BinaryIO, path: Path) -> bool:
    """True once the engine has rotated the file we hold and the new one is there."""
    try:
        return path.stat().st_ino != os.fstat(handle.fileno()).st_ino
    except OSError:  # none there, or none held (io.UnsupportedOperation is an OSError)
        return False
