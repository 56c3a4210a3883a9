"""Writes a recorder's file: tables of fixed size in a mapped file, without a thread.

Runs in a job's processes: standard library only, Python 3.7 and newer. ``recorder/layout.py`` reads
the file and ``recorder/nccl/table.h`` writes the same layout in C. Version 1, little-endian:

* 4,096 bytes of header: magic, version, pid, source, rows in use, sizes, start (monotonic and since
  1970), calls issued, calls lost, note;
* 1,024 calls of 48 bytes, a ring of the latest: begin, sequence, issued, ended, communicator, row,
  check;
* 1,024 rows of 512 bytes: begin, names, bytes, sums, histogram, end. Row 0 is ``other``.

A crash at any instruction leaves a file that can be read. A row is whole where ``begin`` equals
``end``, else its sums are one call apart. A call is whole where ``begin`` and ``check`` agree.
The magic is written last.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import sys
import threading
import time

MAGIC = int.from_bytes(b"LLRECORD", "little")
VERSION = 1

HEADER_SIZE = 4096
CALLS = 1024
CALL_SIZE = 48
ROWS = 1024
ROW_SIZE = 512
CALLS_AT = HEADER_SIZE
ROWS_AT = CALLS_AT + CALLS * CALL_SIZE
SIZE = ROWS_AT + ROWS * ROW_SIZE
"""Size of every file, in bytes; memory is reserved for used rows only."""
RESERVED_ROWS = 64
"""Rows whose memory is reserved at once."""
BINS = 96
MOST_IN_BIN = 0xFFFFFFFF
"""A bin of the histogram stays at it."""

SOURCES = ("nccl", "torch")
TIMINGS = ("device", "host", "issue")
OPERATIONS = (
    *("other", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall"),
    *("gather", "scatter", "send", "recv", "sendrecv", "barrier", "input_wait", "step"),
)
"""Names of nccl-tests, and ``input_wait`` and ``step``. The order is part of the layout."""
TYPES = (
    *("", "int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double"),
    *("bfloat16", "fp8_e4m3", "fp8_e5m2", "int16", "bool", "complex64", "complex128", "mixed"),
)
"""Names of nccl-tests, and further ones of PyTorch. The order is part of the layout."""
TAGS = ("", "coalesced")
"""``coalesced``: one call for several arrays, whose sizes are added."""
OTHER = 0
"""The row of what exceeds the table."""

# Words of eight bytes from the file's begin, or from a row's.
(_PID, _SOURCE, _ROWS_USED, _SIZES, _STARTED, _STARTED_AT, _ISSUED, _LOST) = range(2, 10)
_VERSION = 1
_NOTE_AT, NOTE_SIZE = 128, 128
_BEGIN, _NAMES, _BYTES, _FLAGS, _COUNT, _TIMED, _TOTAL, _MIN, _MAX = range(9)
_HISTOGRAM_AT = 96
_END = 63
SIZES = ROWS | CALLS << 16 | ROW_SIZE << 32 | CALL_SIZE << 48
SAMPLED = 1
"""Flag of a row: not every call was timed."""

_QUARTERS = tuple(2.0 ** (-1 + k / 4) for k in (1, 2, 3))


def bin_of(seconds: float) -> int:
    """Return the histogram's bin of a duration: i from 2^(i/4) up to 2^((i+1)/4) microseconds.

    Shorter durations are in bin 0, longer ones (from 16 s) in bin 95.
    """
    fraction, exponent = math.frexp(seconds * 1e6)
    quarter = sum(fraction >= limit for limit in _QUARTERS)
    found: int = min(max(4 * (exponent - 1) + quarter, 0), BINS - 1)
    return found


class Writer:
    """One file. Methods may be called from several threads.

    The process that made it writes, its forked children do not: see :attr:`open`. Times are
    seconds on CLOCK_MONOTONIC.
    """

    def __init__(self, path: str, source: str, note: str = "") -> None:
        """Make ``path``, in the place of a file that a dead process left. Raises OSError."""
        if sys.byteorder != "little":
            raise OSError("the layout is for little-endian machines")
        self._path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = os.open(path, flags, 0o600)
        except FileExistsError:
            os.unlink(path)  # noqa: PTH108 - pathlib costs an import in every program
            file = os.open(path, flags, 0o600)
        try:
            # Without memory behind it, a mapped page kills the process that touches it.
            os.posix_fallocate(file, 0, ROWS_AT + RESERVED_ROWS * ROW_SIZE)
            os.ftruncate(file, SIZE)
            status = os.fstat(file)
            self._identity = (status.st_dev, status.st_ino)
            self._map = mmap.mmap(file, SIZE)
        except BaseException:
            os.unlink(path)  # noqa: PTH108
            raise
        finally:
            os.close(file)
        view = memoryview(self._map)
        self._words = view.cast("Q")
        self._floats = view.cast("d")
        self._halves = view.cast("I")
        self._lock = threading.RLock()
        """Reentrant: a signal's handler may run a collective inside a recorded one."""
        self.open = True
        """False in a forked child, where nothing is written."""
        self._rows: dict[tuple[str, int, str, str, str], int] = {}
        self._used = 1
        self._reserved = RESERVED_ROWS
        self._issued = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._close)
        self._name(OTHER, ("other", 0, "", "host", ""))
        words = self._words
        words[_PID] = os.getpid()
        words[_SOURCE] = SOURCES.index(source)
        words[_ROWS_USED] = 1
        words[_SIZES] = SIZES
        self._floats[_STARTED] = time.monotonic()
        self._floats[_STARTED_AT] = time.time()
        text = note.encode("ascii", "replace")[: NOTE_SIZE - 1]
        self._map[_NOTE_AT : _NOTE_AT + len(text)] = text
        words[_VERSION] = VERSION
        words[0] = MAGIC

    def row(self, op: str, size: int, dtype: str, timing: str, tag: str = "") -> int:
        """Return the row of an operation of ``size`` bytes; ``other`` where the table is full.

        Unknown names become ``other`` without a type.
        """
        key = (op, size, dtype, timing, tag)
        found = self._rows.get(key)
        if found is not None:
            return found
        with self._lock:
            found = self._rows.get(key)
            if found is not None:
                return found
            if not self.open or self._used == ROWS or not self._reserve(self._used):
                return OTHER
            row = self._used
            self._name(row, key)
            self._rows[key] = row
            self._used = row + 1
            self._words[_ROWS_USED] = self._used
            return row

    def issue(self, row: int, communicator: int, sequence: int, issued_s: float) -> int:
        """Count a call and put it into the ring; return its ticket."""
        with self._lock:
            if not self.open:
                return -1
            ticket = self._issued
            self._issued = ticket + 1
            at = (CALLS_AT + ticket % CALLS * CALL_SIZE) // 8
            words, floats = self._words, self._floats
            words[at] = 0
            self._halves[2 * at + 11] = 0
            words[at + 1] = sequence
            floats[at + 2] = issued_s
            floats[at + 3] = 0.0
            words[at + 4] = communicator
            self._halves[2 * at + 10] = row
            self._halves[2 * at + 11] = (ticket + 1) & 0xFFFFFFFF
            words[at] = ticket + 1
            words[_ISSUED] = ticket + 1
            self._words[(ROWS_AT + row * ROW_SIZE) // 8 + _COUNT] += 1
            return ticket

    def count(self, row: int, calls: int = 1) -> None:
        """Count calls that are not timed: from now on the row's times are a sample's."""
        with self._lock:
            if self.open:
                at = (ROWS_AT + row * ROW_SIZE) // 8
                self._words[at + _FLAGS] |= SAMPLED
                self._words[at + _COUNT] += calls

    def end(self, ticket: int, row: int, issued_s: float, ended_s: float | None) -> None:
        """Add a call's duration to its row, unless ``ended_s`` is None."""
        if ended_s is None:
            return
        duration = max(ended_s - issued_s, 0.0)
        with self._lock:
            if not self.open or ticket < 0:
                return
            at = (CALLS_AT + ticket % CALLS * CALL_SIZE) // 8
            if self._words[at] == ticket + 1:
                self._floats[at + 3] = ended_s
            self._add(row, duration)

    def wait(self, row: int, seconds: float) -> None:
        """Count and time something other than a call between ranks: it is not in the ring."""
        with self._lock:
            if self.open:
                self._words[(ROWS_AT + row * ROW_SIZE) // 8 + _COUNT] += 1
                self._add(row, max(seconds, 0.0))

    def lose(self) -> None:
        """Count a call that could not be recorded."""
        with self._lock:
            if self.open:
                self._words[_LOST] += 1

    def _add(self, row: int, duration: float) -> None:
        base = ROWS_AT + row * ROW_SIZE
        at = base // 8
        words, floats = self._words, self._floats
        begin = words[at] + 1
        words[at] = begin
        timed = words[at + _TIMED]
        words[at + _TIMED] = timed + 1
        floats[at + _TOTAL] += duration
        if not timed or duration < floats[at + _MIN]:
            floats[at + _MIN] = duration
        floats[at + _MAX] = max(floats[at + _MAX], duration)
        bucket = (base + _HISTOGRAM_AT) // 4 + bin_of(duration)
        self._halves[bucket] = min(self._halves[bucket] + 1, MOST_IN_BIN)
        words[at + _END] = begin

    def _name(self, row: int, key: tuple[str, int, str, str, str]) -> None:
        op, size, dtype, timing, tag = key
        names = (
            _position(OPERATIONS, op)
            | _position(TYPES, dtype) << 8
            | _position(TIMINGS, timing) << 16
            | _position(TAGS, tag) << 24
        )
        at = (ROWS_AT + row * ROW_SIZE) // 8
        self._words[at + _BYTES] = size if op in OPERATIONS else 0
        self._words[at + _NAMES] = names | 1 << 32

    def _reserve(self, row: int) -> bool:
        """Whether memory is behind ``row``."""
        if row < self._reserved:
            return True
        try:
            file = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                status = os.fstat(file)
                if (status.st_dev, status.st_ino) != self._identity:
                    return False
                at = ROWS_AT + self._reserved * ROW_SIZE
                os.posix_fallocate(file, at, RESERVED_ROWS * ROW_SIZE)
            finally:
                os.close(file)
        except OSError:
            return False
        self._reserved += RESERVED_ROWS
        return True

    def _close(self) -> None:
        self.open = False


def _position(names: tuple[str, ...], name: str) -> int:
    return names.index(name) if name in names else 0


HEADER = struct.Struct("<10Q")
"""Magic, version, pid, source, rows in use, sizes, start twice (as bits), issued, lost."""
