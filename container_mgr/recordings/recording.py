"""What is known of one rank's communication, and how it follows from its recorders' files. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agentlink.ranks import RankKey
from agentlink.values import ProfilerWindow
from container_mgr.recordings.bursts import Bursts
from container_mgr.recordings.place import RecordFile
from container_mgr.recordings.shown import NOTHING
from recorder import layout

State = Literal["recording", "absent", "damaged", "refused"]

MOST_ROWS = 1024
MOST_CALLS = 512


@dataclass(slots=True, frozen=True, kw_only=True)
class RecordingState:
    """What the recorders of one rank have written so far."""

    state: State
    reason: str = ""
    time: float = 0.0
    """Seconds since 1970."""
    operations: tuple[layout.OperationSums, ...] = ()
    calls: tuple[layout.Call, ...] = ()
    damaged_rows: int = 0


@dataclass(slots=True, frozen=True, kw_only=True)
class RankRecording:
    """What is known of one rank's communication."""

    key: RankKey
    read: RecordingState
    wire: Bursts | None = None
    wire_time: float = 0.0
    profiler: ProfilerWindow | None = None
    """The latest window of TensorFlow's profiler."""
    coverage: float = 0.0
    """Share of the rank's time that such windows cover."""
    ended: bool = False


def read_of(
    files: Sequence[RecordFile], now: float, *, refused: str = "", lacking: str = NOTHING
) -> RecordingState:
    """Return what the files of one rank hold.

    ``refused`` is why the rank cannot be recorded, ``lacking`` why else a file may be missing.
    """
    problems, whole = [], []
    for file in files:
        try:
            if file.problem:
                raise layout.DamagedError(file.problem)
            whole.append(layout.read(file.data, MOST_CALLS))
        except layout.DamagedError as error:
            problems.append(f"{file.name}: {error}")
    if not whole:
        if problems:
            return RecordingState(state="damaged", reason="; ".join(problems), time=now)
        if refused:
            return RecordingState(state="refused", reason=refused, time=now)
        return RecordingState(state="absent", reason=lacking, time=now)
    rows, calls = _merged(whole)
    damaged = sum(one.damaged_rows for one in whole)
    return RecordingState(
        state="damaged" if damaged or problems else "recording",
        reason="; ".join(problems) or (f"{damaged} rows cannot be true" if damaged else refused),
        time=now,
        operations=tuple(rows),
        calls=tuple(calls),
        damaged_rows=damaged,
    )


def _merged(
    contents: Sequence[layout.Contents],
) -> tuple[list[layout.OperationSums], list[layout.Call]]:
    """Return the rows of all processes of a rank as one, and their latest calls by time."""
    rows: list[layout.OperationSums] = []
    places: dict[tuple[object, ...], int] = {}
    calls: list[layout.Call] = []
    for one in contents:
        moved: dict[int, int] = {}
        for position, row in enumerate(one.operations):
            key = (row.op, row.bytes, row.dtype, row.tag, row.source, row.timing)
            if key in places:
                rows[places[key]] = _sum(rows[places[key]], row)
            elif len(rows) < MOST_ROWS:
                places[key] = len(rows)
                rows.append(row)
            else:
                continue
            moved[position] = places[key]
        calls += [
            replace(call, operation=moved[call.operation])
            for call in one.calls
            if call.operation in moved
        ]
    calls.sort(key=lambda call: call.issued_s)
    return rows, calls[-MOST_CALLS:]


def _sum(a: layout.OperationSums, b: layout.OperationSums) -> layout.OperationSums:
    timed = [row for row in (a, b) if sum(row.histogram)]
    return replace(
        a,
        calls=a.calls + b.calls,
        total_s=a.total_s + b.total_s,
        min_s=min((row.min_s for row in timed), default=0.0),
        max_s=max((row.max_s for row in timed), default=0.0),
        histogram=tuple(x + y for x, y in zip(a.histogram, b.histogram, strict=True)),
        exact=a.exact and b.exact,
    )
