"""Reads what the jobs of a measurement printed: hostile text, bounded and checked."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from controller.base.slices import Turns
from controller.base.texts import clipped, unsound_at
from controller.devices.engine import MISSING, LogLine
from measure.kinds import Line

MOST_LINES = 200_000
"""Of one measurement."""
MOST_BYTES = 64 * 2**20
"""Of the texts of those lines."""
MOST_LINE_BYTES = 64 * 2**10
MOST_VALUES = 2_000_000
"""Of those lines: three letters can be an object of 100 bytes in memory."""
MOST_LINE_VALUES = 8192
"""More hold the event loop too long."""


def values(text: str) -> int:
    """Return at least how many values and names a line has, without parsing it."""
    return sum(map(text.count, ",:[{"))


def parsed(text: str) -> dict[str, Any] | None:
    """Return the object that a line holds; None for any other line.

    Numbers are finite and texts valid: what is made of a line can be stored and sent.
    """
    if not text.startswith("{") or len(text) > MOST_LINE_BYTES:
        return None
    try:
        record = json.loads(text, parse_float=_finite, parse_constant=_refused)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and unsound_at(record) is None else None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("not finite")
    return value


def _refused(text: str) -> float:
    raise ValueError(text)


@dataclass(slots=True)
class _OfRun:
    ranks: int
    lines: list[Line] = field(default_factory=list)
    size: int = 0
    values: int = 0
    cut: int = 0
    missing: dict[int, str] = field(default_factory=dict)


class Collected:
    """The lines of a measurement's runs, in the order of the runs."""

    def __init__(self) -> None:
        self._runs: dict[int, _OfRun] = {}
        self._count = 0
        self._size = 0
        self._values = 0

    def __len__(self) -> int:
        return self._count

    def all(self) -> list[Line]:
        """Return every line, by run."""
        return [line for run in sorted(self._runs) for line in self._runs[run].lines]

    def has(self, run: int) -> bool:
        """Whether a run has printed any line that counts."""
        of = self._runs.get(run)
        return of is not None and bool(of.lines)

    def problems(self) -> list[str]:
        """Return what is missing, for people."""
        runs = [self._runs[run] for run in sorted(self._runs)]
        found = [
            f"output of {'a run' if rank < 0 else f'rank {rank}'} is missing: {clipped(text)}"
            for run in runs
            for rank, text in sorted(run.missing.items())
        ]
        cut = sum(run.cut for run in runs)
        most = f"{MOST_LINES} lines, {MOST_BYTES // 2**20} MiB and {MOST_VALUES} values"
        return [*found, f"{cut} lines are left out: {most} are kept"] if cut else found

    async def read(self, run: int, ranks: int, lines: AsyncIterator[LogLine]) -> None:
        """Replace the lines of a run by those of its whole output."""
        self._forget(run)
        with Turns() as turns:
            async for line in lines:
                self.add(run, ranks, line)
                await turns.breathe()

    def add(self, run: int, ranks: int, line: LogLine) -> None:
        """Add one line of a run; lines above the limits are counted only."""
        of = self._runs.setdefault(run, _OfRun(ranks))
        if not 0 <= line.rank < ranks:
            return
        if line.stream == MISSING:
            of.missing.setdefault(line.rank, line.text)
            return
        if line.stream != "stdout" or not line.text.startswith("{"):
            return
        size, count = len(line.text), values(line.text)
        if (
            self._count >= MOST_LINES
            or self._size + size > MOST_BYTES
            or self._values + count > MOST_VALUES
            or count > MOST_LINE_VALUES
        ):
            of.cut += 1
            return
        if (record := parsed(line.text)) is None:
            return
        of.lines.append(Line(run, line.rank, record))
        of.size += size
        of.values += count
        self._count += 1
        self._size += size
        self._values += count

    def lost(self, run: int, ranks: int, why: str) -> None:
        """Record that the output of a run could not be read; what is known of it stays."""
        self._runs.setdefault(run, _OfRun(ranks)).missing.setdefault(-1, why)

    def _forget(self, run: int) -> None:
        if (of := self._runs.pop(run, None)) is not None:
            self._count -= len(of.lines)
            self._size -= of.size
            self._values -= of.values
