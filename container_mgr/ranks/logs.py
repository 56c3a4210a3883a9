"""Reads the output of containers from the engine's json-file logs.

The agent reads the files directly: that keeps stream and time of every line, costs the engine
nothing and works while it hangs. Separate threads read in small steps, so neither a large log nor
many readers delay the agent; a reader of an endless log rests between its steps.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from base import clock
from container_mgr.docker.inspection import parse_time

SUFFIX = "-json.log"
"""Ends the name of a log that is not rotated."""
RECORD_LIMIT = 256 * 1024
"""The engine splits lines at 16 KiB; JSON needs at most six times as much."""
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
_STREAMS = ("stdout", "stderr")
_POLL_S = 0.2
_REST = 3.0
"""How long a follower rests after each step, as a multiple of the step's time."""
LOST = "lightloom: the program wrote faster than this reader could read; lines are missing here"
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="logs")

_T = TypeVar("_T")


@dataclass(slots=True, frozen=True)
class OutputLine:
    """One line of a program's output. ``time`` is seconds since 1970."""

    time: float
    stream: str
    text: str


@dataclass(slots=True, frozen=True)
class LineFilter:
    """Which lines a reader gets."""

    since: float | None = None
    """Only lines at or after this time, in seconds since 1970."""
    search: str = ""
    """Only lines that contain this text."""

    @property
    def all(self) -> bool:
        """True if no line is left out."""
        return self.since is None and not self.search

    def matches(self, line: OutputLine) -> bool:
        """Return whether the reader gets this line."""
        return (self.since is None or line.time >= self.since) and self.search in line.text


@dataclass(slots=True)
class Joiner:
    """Joins lines that the engine split (at 16 KiB), and cuts lines that are too long."""

    _parts: dict[str, tuple[float, str]] = field(default_factory=dict)

    def feed(self, raw: bytes) -> OutputLine | None:
        """Add one record of the file; return a line once it is complete. Skips broken records."""
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

    def rest(self) -> list[OutputLine]:
        """Return incomplete lines: a prompt, or the last output of a program that was killed."""
        left = [_line(time, stream, text) for stream, (time, text) in self._parts.items()]
        self._parts.clear()
        return left


def _line(time: float, stream: str, text: str) -> OutputLine:
    # A message is UTF-8; JSON can contain surrogates, which are not.
    clean = text if text.isascii() else text.encode("utf-8", "replace").decode()
    return OutputLine(time, stream, clean.rstrip("\n"))


def files(log: Path) -> list[Path]:
    """Return the rotated files of ``log``, oldest first, and ``log`` itself."""
    rotated = [p for p in log.parent.glob(f"{log.name}.*") if p.suffix[1:].isdecimal()]
    rotated.sort(key=lambda p: int(p.suffix[1:]), reverse=True)
    return [p for p in (*rotated, log) if p.exists()]


def exists(log: Path) -> bool:
    """Return whether the engine keeps this log; while it rotates, only older files are there."""
    return log.exists() or bool(files(log))


class LogReader:
    """Reads a log's files as one. They stay open, so a rotation meanwhile loses nothing.

    Methods block: call them in a thread, one at a time.
    """

    def __init__(self, log: Path, matching: LineFilter = LineFilter()) -> None:
        self._log = log
        self._filter = matching
        self._files, _ = _open_after(log, None)
        self._joiner = Joiner()
        self._skip = 0
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

    def count(self) -> tuple[int, bool]:
        """Return how many of the next lines match, and whether more can be read now."""
        lines, more = self._read(count_only=True)
        return len(lines), more

    def rewind(self, skip: int) -> None:
        """Go to the start, and leave out the first ``skip`` lines that match."""
        for handle in self._files:
            handle.seek(0)
        self._at, self._skip, self._joiner = 0, skip, Joiner()

    def batch(self) -> tuple[list[OutputLine], bool]:
        """Return the next lines, and whether more can be read now."""
        lines, more = self._read()
        dropped = min(self._skip, len(lines))
        self._skip -= dropped
        return lines[dropped:], more

    def rest(self) -> list[OutputLine]:
        """Return the incomplete lines at the end."""
        return [line for line in self._joiner.rest() if self._filter.matches(line)][self._skip :]

    def rotated(self) -> bool:
        """Return whether the engine has rotated the newest file and created a new one."""
        return _is_rotated(self._files[-1] if self._files else None, self._log)

    def renew(self) -> list[OutputLine] | None:
        """Continue with the files that came after; None without any.

        Returns a line that says so when some of them were removed before they were read.
        """
        inode = os.fstat(self._files[-1].fileno()).st_ino if self._files else None
        newer, gapless = _open_after(self._log, inode)
        if not newer:
            return None
        self.close()
        self._files, self._at = newer, 0
        return [] if gapless else [OutputLine(clock.time(), "stderr", LOST)]

    def _go_back(self, back: int) -> bool:
        """Go to the first record in the last ``back`` bytes; True at the start of the log."""
        self._at = 0
        for index in range(len(self._files) - 1, -1, -1):
            handle = self._files[index]
            size = handle.seek(0, os.SEEK_END)
            self._at = index
            if size > back:
                handle.seek(size - back - 1)
                while (part := handle.readline(RECORD_LIMIT)) and not part.endswith(b"\n"):
                    pass
                return False
            handle.seek(0)
            back -= size
        return True

    def _read(self, *, count_only: bool = False) -> tuple[list[OutputLine], bool]:
        lines: list[OutputLine] = []
        size = taken = 0
        while self._at < len(self._files):
            handle = self._files[self._at]
            raw = handle.readline(RECORD_LIMIT)
            if not raw.endswith(b"\n") and len(raw) < RECORD_LIMIT:
                if self._at < len(self._files) - 1:
                    self._at += 1
                    continue
                handle.seek(-len(raw), os.SEEK_CUR)  # the engine is still writing this record
                return lines, False
            taken += len(raw)
            line = self._joiner.feed(raw)
            if line is not None and self._filter.matches(line):
                lines.append(line)
                size += len(line.text) * (1 if line.text.isascii() else 4)
            full = len(lines) >= _BATCH_LINES or size >= _BATCH_BYTES
            if taken >= _STEP_BYTES or (full and not count_only):
                return lines, True
        return lines, False


async def read(
    log: Path,
    *,
    tail: int | None,
    follow: bool,
    alive: Callable[[], Awaitable[bool]],
    matching: LineFilter = LineFilter(),
    clock: Callable[[], float] = clock.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[list[OutputLine]]:
    """Yield batches of matching lines; with ``follow`` until ``alive`` is false and all is read.

    ``tail`` is the number of last lines, MAX_TAIL_LINES at most. ``alive`` returns whether the log
    may still grow: an engine writes for a while after a program's end. An empty batch shows a
    caller with a time limit that the search goes on.
    """
    reader = await _in_thread(partial(LogReader, log, matching))
    try:
        if tail is not None and matching.all:
            await _in_thread(partial(reader.seek_tail, tail))
        elif tail is not None:
            found, more = 0, True
            while more:
                count, more = await _in_thread(reader.count)
                found += count
                yield []
            found += len(reader.rest())
            reader.rewind(max(0, found - min(tail, MAX_TAIL_LINES)))
        while True:
            # Both are asked before the read, so that the last output is not missed.
            living = follow and await alive()
            rotated = follow and await _in_thread(reader.rotated)
            quiet, more = True, True
            while more:
                began = clock()
                lines, more = await _in_thread(reader.batch)
                quiet = quiet and not lines
                yield lines
                if follow and more:
                    await sleep(_REST * (clock() - began))
            if rotated:
                lost = await _in_thread(reader.renew)
                if lost is None:
                    return
                yield lost
            elif not living and quiet:
                break
            elif quiet:
                await sleep(_POLL_S)
            elif not follow:
                break
        yield reader.rest()
    finally:
        asyncio.get_running_loop().run_in_executor(_THREADS, reader.close)


async def _in_thread(work: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work)


def _open_after(log: Path, inode: int | None) -> tuple[list[BinaryIO], bool]:
    """Open the log's files that are newer than ``inode``, oldest first; None means all.

    Also returns whether nothing between them and ``inode`` is missing.
    """
    opened: list[BinaryIO] = []
    seen: set[int] = set()
    for path in reversed(files(log)):  # a rotation meanwhile moves files in the other direction
        with suppress(OSError):
            handle = path.open("rb")
            number = os.fstat(handle.fileno()).st_ino
            if number in seen or number == inode:
                handle.close()
                if number == inode:
                    return opened, True
                continue
            seen.add(number)
            opened.insert(0, handle)
    return opened, inode is None


def _is_rotated(handle: BinaryIO | None, path: Path) -> bool:
    """Return whether the engine has rotated the open file and created the new one."""
    try:
        inode = None if handle is None else os.fstat(handle.fileno()).st_ino
        return path.stat().st_ino != inode
    except OSError:  # no new one
        return False
