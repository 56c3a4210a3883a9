"""Reads a recorder's file. A job wrote it: every byte may be a lie.

:mod:`recorder.python.lightloom_writer` has the layout. Reading is bounded by the file's fixed size;
what is not plausible is dropped and counted.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from typing import Final, Literal, cast

from recorder.python.lightloom_writer import (
    BINS,
    CALL_SIZE,
    CALLS,
    CALLS_AT,
    HEADER,
    MAGIC,
    MOST_IN_BIN,
    NOTE_SIZE,
    OPERATIONS,
    ROW_SIZE,
    ROWS,
    ROWS_AT,
    SAMPLED,
    SIZE,
    SIZES,
    SOURCES,
    TAGS,
    TIMINGS,
    TYPES,
    VERSION,
)

__all__ = ["BINS", "FILE_NAME", "SIZE", "Call", "Contents", "DamagedError", "OperationSums", "read"]

Source = Literal["nccl", "torch"]
Timing = Literal["device", "host", "issue"]

FILE_NAME: Final = re.compile(r"(nccl|torch)-[1-9][0-9]{0,9}\.rec", re.ASCII)
"""Name of a recorder's file; to be matched as a whole."""
LATEST_CALLS = 512

_ROW: Final = struct.Struct(f"<QQQQQQddd24x{BINS}I24xQ")
_CALL: Final = struct.Struct("<QQddQII")
_TIMES: Final = struct.Struct("<dd")
_TIMES_AT, _NOTE_AT = 48, 128
_MOST_BYTES = 1 << 50
_MOST_CALLS = 1 << 53
_LONGEST_S = 1e6
_LATEST_S = 1e10


class DamagedError(Exception):
    """Not a recorder's file; the text gives the error."""


@dataclass(slots=True, frozen=True, kw_only=True)
class OperationSums:
    """Sums over all calls of one operation, size, type and tag. Seconds and bytes.

    ``sum(histogram)`` calls were timed; if they are a sample (``exact`` is False) ``total_s`` is
    estimated from them. ``calls`` is exact always.
    """

    op: str
    bytes: int
    dtype: str
    tag: str
    calls: int
    total_s: float
    min_s: float
    max_s: float
    histogram: tuple[int, ...]
    """Timed calls by duration: bin i of 96 has those from 2^(i/4) to 2^((i+1)/4) microseconds."""
    source: Source | Literal["tf"]
    """``tf`` writes no file: such rows come from windows of TensorFlow's profiler."""
    timing: Timing
    """``issue``: the time until a call returned, which does not bound its end."""
    exact: bool


@dataclass(slots=True, frozen=True)
class Call:
    """One call. Times are seconds on CLOCK_MONOTONIC."""

    operation: int
    """Position in the contents' operations."""
    sequence: int
    """Counts the calls of its communicator on this rank, from 0."""
    issued_s: float
    ended_s: float | None
    """None while it runs, and where only the issue is known."""
    communicator: int
    """The same number on all ranks of the communicator."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Contents:
    """The contents of a recorder's file."""

    pid: int
    """In the container."""
    source: Source
    note: str
    """Version and way of recording: printable ASCII."""
    started_s: float
    """On CLOCK_MONOTONIC."""
    started_at: float
    """Seconds since 1970."""
    operations: tuple[OperationSums, ...]
    calls: tuple[Call, ...]
    """The latest, in the order of their issue."""
    damaged_rows: int
    """Rows that were dropped because they cannot be true."""
    torn_rows: int
    """Rows that were being written: their sums may be one call apart."""
    lost: int
    """Calls that could not be recorded."""


def read(data: bytes, latest: int = LATEST_CALLS) -> Contents:
    """Return the contents of a file, with at most ``latest`` calls. Raises DamagedError only.

    Takes about 20 ms for a full file. The times are plausible, but not compared with the clock.
    """
    if len(data) != SIZE:
        raise DamagedError(f"the file has {len(data)} bytes instead of {SIZE}")
    magic, version, pid, source, used, sizes, _, _, issued, lost = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise DamagedError("the file is not a recorder's, or not ready")
    if version != VERSION or sizes != SIZES:
        raise DamagedError(f"layout {min(version, 1 << 32)} is unknown: this agent reads {VERSION}")
    started_s, started_at = _TIMES.unpack_from(data, _TIMES_AT)
    if not (
        0 < pid < 1 << 32
        and source < len(SOURCES)
        and 1 <= used <= ROWS
        and issued < _MOST_CALLS
        and lost < _MOST_CALLS
        and _within(started_s, _LATEST_S)
        and _within(started_at, _LATEST_S)
    ):
        raise DamagedError("the header has impossible values")
    name = cast("Source", SOURCES[source])
    operations: list[OperationSums] = []
    positions: dict[int, int] = {}
    damaged = torn = 0
    for row in range(used):
        values = _ROW.unpack_from(data, ROWS_AT + row * ROW_SIZE)
        if row == 0 and not values[4]:
            continue  # nothing exceeded the table
        whole = values[0] == values[-1]
        operation = _operation(values, name, whole)
        torn += not whole
        if operation is None:
            damaged += 1
        else:
            positions[row] = len(operations)
            operations.append(operation)
    return Contents(
        pid=pid,
        source=name,
        note=_text(data[_NOTE_AT : _NOTE_AT + NOTE_SIZE]),
        started_s=started_s,
        started_at=started_at,
        operations=tuple(operations),
        calls=_calls(data, issued, min(latest, CALLS), positions),
        damaged_rows=damaged,
        torn_rows=torn,
        lost=lost,
    )


def _operation(
    values: tuple[int | float, ...], source: Source, whole: bool
) -> OperationSums | None:
    """Return the operation of an unpacked row; None for one that cannot be true."""
    _, names, size, flags, calls, timed = (int(value) for value in values[:6])
    total, least, most = values[6:9]
    histogram = tuple(int(value) for value in values[9:-1])
    op, dtype, timing, tag = (names >> shift & 0xFF for shift in (0, 8, 16, 24))
    if not (
        names >> 32 == 1
        and op < len(OPERATIONS)
        and dtype < len(TYPES)
        and timing < len(TIMINGS)
        and tag < len(TAGS)
        and size <= _MOST_BYTES
        and flags in (0, SAMPLED)
        and timed <= calls <= _MOST_CALLS
        and _within(least, _LONGEST_S)
        and _within(most, _LONGEST_S)
        and _within(total, _LONGEST_S * _MOST_CALLS)
    ):
        return None
    slack = 0 if whole else 1
    error = 1e-6 * total + slack * most + 1e-9
    if not (
        least <= most
        and (MOST_IN_BIN in histogram or abs(sum(histogram) - timed) <= slack)
        and timed * least - error <= total <= timed * most + error
    ):
        return None
    sampled = flags == SAMPLED
    return OperationSums(
        op=OPERATIONS[op],
        bytes=size,
        dtype=TYPES[dtype],
        tag=TAGS[tag],
        calls=calls,
        total_s=total * calls / timed if sampled and timed else total,
        min_s=least,
        max_s=most,
        histogram=histogram,
        source=source,
        timing=cast("Timing", TIMINGS[timing]),
        exact=not sampled,
    )


def _calls(data: bytes, issued: int, latest: int, positions: dict[int, int]) -> tuple[Call, ...]:
    calls = []
    for ticket in range(max(issued - latest, 0), issued):
        at = CALLS_AT + ticket % CALLS * CALL_SIZE
        begin, sequence, start, end, communicator, row, check = _CALL.unpack_from(data, at)
        if not (
            begin == ticket + 1
            and check == begin & 0xFFFFFFFF
            and row in positions
            and sequence < _MOST_CALLS
            and _within(start, _LATEST_S)
            and (end == 0 or start <= end <= start + _LONGEST_S)
        ):
            continue
        calls.append(Call(positions[row], sequence, start, end or None, communicator))
    return tuple(calls)


def _within(value: float, most: float) -> bool:
    return math.isfinite(value) and 0 <= value <= most


def _text(data: bytes) -> str:
    text = data.split(b"\0", 1)[0].decode("ascii", "replace")
    return "".join(character if character.isprintable() else "?" for character in text)
