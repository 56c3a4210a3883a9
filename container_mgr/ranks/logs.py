"""Reads the output of containers from the engine's json-file logs.

The agent reads the files directly: that keeps stream and time of every line, costs the engine
nothing and works while it hangs. It archives them when a container is removed, so the end of a
cancelled job's output stays readable. Separate threads read in small steps, so neither a large
log nor many readers delay the agent.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from container_mgr.docker.inspection import parse_time
from container_mgr.values import RankKey

KEPT_CONTAINERS = 64
"""The number of removed containers whose logs are kept."""
KEPT_BYTES = 4 * 2**20
"""How much of each log's end is kept. The archive is in memory when ``/run`` is."""
MAX_TAIL_LINES = 100_000
MAX_TAIL_BYTES = 16 * 2**20
"""How far back a tail searches for its lines, in bytes of the engine's files."""

_BATCH_LINES = 512
_BATCH_BYTES = 2**20
"""The text of one message: well below gRPC's limit of 4 MiB."""
_STEP_BYTES = 2**20
"""Read in one step, so that many readers take turns."""
_FIRST_TAIL_BYTES = 64 * 1024
_LINE_LIMIT = 64 * 1024
_RECORD_LIMIT = 256 * 1024
"""The engine splits lines at 16 KiB; JSON needs at most six times as much."""
_STREAMS = ("stdout", "stderr")
_POLL_S = 0.2
_SUFFIX = "-json.log"
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="logs")

_T = TypeVar("_T")


@dataclass(slots=True, frozen=True)
class Line:
    """One line of a program's output. ``time`` is seconds since 1970."""

    time: float
    stream: str
    text: str


@dataclass(slots=True)
class Joiner:
    """Joins lines that the engine split (at 16 KiB), and cuts lines that are too long."""

    _parts: dict[str, tuple[float, str]] = field(default_factory=dict)

    def feed(self, raw: bytes) -> Line | None:
        """Take one record of the file; return a line once it is complete. Skips broken records."""
        try:
            record = json.loads(raw)
            stream, text, time = record["stream"], record["log"], parse_time(record["time"])
            if stream not in _STREAMS:
                return None
            text = self._parts.pop(stream, (0.0, ""))[1] + text
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        if not text.endswith("\n") and len(text) < _LINE_LIMIT:
            self._parts[stream] = (time or 0.0, text)
            return None
        return _line(time or 0.0, stream, text)

    def rest(self) -> list[Line]:
        """Return incomplete lines: a prompt, or the last output of a program that was killed."""
        left = [_line(time, stream, text) for stream, (time, text) in self._parts.items()]
        self._parts.clear()
        return left


def _line(time: float, stream: str, text: str) -> Line:
    # A message is UTF-8; JSON can contain surrogates, which are not.
    clean = text if text.isascii() else text.encode("utf-8", "replace").decode()
    return Line(time, stream, clean.rstrip("\n"))


def files(log: Path) -> list[Path]:
    """Return the rotated files of ``log``, oldest first, and ``log`` itself."""
    rotated = [p for p in log.parent.glob(f"{log.name}.*") if p.suffix[1:].isdecimal()]
    rotated.sort(key=lambda p: int(p.suffix[1:]), reverse=True)
    return [p for p in (*rotated, log) if p.exists()]


class LogReader:
    """Reads a log's files as one. They stay open, so a rotation meanwhile loses nothing.

    Methods block: call them in a thread, one at a time.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._files: list[BinaryIO] = []
        self._joiner = Joiner()
        self._skip = 0
        seen = set()
        for path in reversed(files(log)):  # a rotation meanwhile moves files in the other direction
            with suppress(OSError):
                handle = path.open("rb")
                inode = os.fstat(handle.fileno()).st_ino
                if inode in seen:
                    handle.close()
                    continue
                seen.add(inode)
                self._files.insert(0, handle)
        self._at = 0

    def close(self) -> None:
        """Close the files."""
        for handle in self._files:
            handle.close()

    def seek_tail(self, tail: int) -> None:
        """Go to the start of the last ``tail`` lines, or as far back as a tail may search."""
        tail = min(tail, MAX_TAIL_LINES)
        back = _FIRST_TAIL_BYTES
        while True:
            at_start = self._go_back(min(back, MAX_TAIL_BYTES))
            position = self._at, [handle.tell() for handle in self._files]
            lines = 0
            while True:
                batch, more = self._read(count_only=True)
                lines += len(batch)
                if not more:
                    break
            lines += len(self._joiner.rest())
            # One more line than asked for, so that the first line shown is complete.
            if lines > tail or at_start or back >= MAX_TAIL_BYTES:
                break
            back *= 4
        self._at, offsets = position
        for handle, offset in zip(self._files, offsets, strict=True):
            handle.seek(offset)
        self._joiner = Joiner()
        self._skip = max(0, lines - tail)

    def batch(self) -> tuple[list[Line], bool]:
        """Return the next lines, and whether more can be read now."""
        lines, more = self._read()
        dropped = min(self._skip, len(lines))
        self._skip -= dropped
        return lines[dropped:], more

    def rest(self) -> list[Line]:
        """Return the incomplete lines at the end."""
        return self._joiner.rest()[self._skip :]

    def rotated(self) -> bool:
        """Return whether the engine has rotated the newest file and created a new one."""
        return _is_rotated(self._files[-1] if self._files else None, self._log)

    def renew(self) -> bool:
        """Continue with the new file; False when there is none."""
        try:
            newer = self._log.open("rb")
        except OSError:
            return False
        self.close()
        self._files, self._at = [newer], 0
        return True

    def _go_back(self, back: int) -> bool:
        """Go to the first record in the last ``back`` bytes; True at the start of the log."""
        self._at = 0
        for index in range(len(self._files) - 1, -1, -1):
            handle = self._files[index]
            size = handle.seek(0, os.SEEK_END)
            self._at = index
            if size > back:
                handle.seek(size - back - 1)
                while (part := handle.readline(_RECORD_LIMIT)) and not part.endswith(b"\n"):
                    pass
                return False
            handle.seek(0)
            back -= size
        return True

    def _read(self, *, count_only: bool = False) -> tuple[list[Line], bool]:
        lines: list[Line] = []
        size = taken = 0
        while self._at < len(self._files):
            handle = self._files[self._at]
            raw = handle.readline(_RECORD_LIMIT)
            if not raw.endswith(b"\n") and len(raw) < _RECORD_LIMIT:
                if self._at < len(self._files) - 1:
                    self._at += 1
                    continue
                handle.seek(-len(raw), os.SEEK_CUR)  # the engine is still writing this record
                return lines, False
            taken += len(raw)
            line = self._joiner.feed(raw)
            if line is not None:
                lines.append(line)
                size += len(line.text) * (1 if line.text.isascii() else 4)
            full = len(lines) >= _BATCH_LINES or size >= _BATCH_BYTES
            if taken >= _STEP_BYTES or (full and not count_only):
                return lines, True
        return lines, False


async def read(
    log: Path, *, tail: int | None, follow: bool, alive: Callable[[], Awaitable[bool]]
) -> AsyncIterator[list[Line]]:
    """Yield batches of lines; with ``follow`` until ``alive`` is false and all is read.

    ``tail`` is the number of last lines, MAX_TAIL_LINES at most. ``alive`` tells whether the log
    may still grow: an engine writes for a while after a program's end.
    """
    reader = await _in_thread(partial(LogReader, log))
    try:
        if tail is not None:
            await _in_thread(partial(reader.seek_tail, tail))
        while True:
            # Both are asked before the read, so that the last output is not missed.
            living = follow and await alive()
            rotated = follow and await _in_thread(reader.rotated)
            quiet, more = True, True
            while more:
                lines, more = await _in_thread(reader.batch)
                quiet = quiet and not lines
                if lines:
                    yield lines
            if rotated:
                if not await _in_thread(reader.renew):
                    return
            elif not living and quiet:
                break
            elif quiet:
                await asyncio.sleep(_POLL_S)
            elif not follow:
                break
        if last := reader.rest():
            yield last
    finally:
        _THREADS.submit(reader.close)


async def _in_thread(work: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work)


class Archive:
    """The ends of the logs of the containers that were removed last."""

    def __init__(self, directory: Path) -> None:
        self._dir = directory
        self._lock = threading.Lock()  # the ranks of a job end together, each in a thread

    def store(self, key: RankKey, log: Path) -> None:
        """Copy the end of a container's logs here; files that cannot be read are skipped."""
        target = self._dir / key.container
        shutil.rmtree(target, ignore_errors=True)  # an earlier run of the same rank
        target.mkdir(parents=True, exist_ok=True)
        left = KEPT_BYTES
        for path in reversed(files(log)):
            with suppress(OSError):
                kept = target / path.name.replace(log.name, f"rank{_SUFFIX}")
                left -= _copy_end(path, kept, left)
        with self._lock:
            with suppress(FileNotFoundError):  # removed: many newer logs came while it was copied
                self._mark_newest(target)
            dated = sorted(self._dir.iterdir(), key=lambda p: p.stat().st_mtime_ns)
            for old in dated[:-KEPT_CONTAINERS]:
                shutil.rmtree(old, ignore_errors=True)

    def _mark_newest(self, target: Path) -> None:
        """Date ``target`` after all others, also when the system clock was set back meanwhile."""
        others = [p.stat().st_mtime_ns for p in self._dir.iterdir() if p != target]
        date = max(target.stat().st_mtime_ns, max(others, default=0) + 1)
        os.utime(target, ns=(date, date))

    def find(self, job: str, rank: int) -> Path | None:
        """Return the log of the newest epoch of a removed rank."""
        prefix = RankKey(job, rank, 0).container.removesuffix("0")
        epochs = {
            int(p.name.removeprefix(prefix)): p
            for p in self._dir.glob(f"{prefix}*")
            if p.name.removeprefix(prefix).isdecimal()
        }
        return epochs[max(epochs)] / f"rank{_SUFFIX}" if epochs else None


def _copy_end(source: Path, target: Path, limit: int) -> int:
    """Copy whole records from the end of a file; return the number of bytes."""
    if limit <= 0:
        return 0
    with source.open("rb") as given:
        size = given.seek(0, os.SEEK_END)
        if size > limit:
            given.seek(size - limit - 1)
            while (part := given.readline(_RECORD_LIMIT)) and not part.endswith(b"\n"):
                pass
        else:
            given.seek(0)
        end = given.read(limit)
    if size and not end:
        return limit  # no whole record fits
    target.write_bytes(end)
    return len(end)


def _is_rotated(handle: BinaryIO | None, path: Path) -> bool:
    """Say whether the engine has rotated the open file and created the new one."""
    try:
        inode = None if handle is None else os.fstat(handle.fileno()).st_ino
        return path.stat().st_ino != inode
    except OSError:  # no new one
        return False
