"""Samples on disk in a fixed amount of space: one per second for 15 minutes, one per ten seconds
for a day, one per five minutes for a month.

Three files of fixed size; the finest is also in memory. A sample's place follows from its time
alone, and its time is stored with it, so no header can be lost: a crash leaves at most one
torn row, and a row whose time does not belong to its place is an old one. A coarse row is the mean
of the finer rows of its interval, computed when the interval ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.base.errors import ServiceError
from controller.telemetry.history_file import RowFile, Rows, RowWriter, draft_of, rewrite
from readings.catalogue import kept

MEASURED = kept("telemetry")
"""The readings of ranks beside their throughput."""
COLUMNS = ("rx_bps", "tx_bps", *MEASURED)
GPU_COLUMNS = kept("gpu")
LIGHT_COLUMNS = ("power_in_dbm", "power_out_dbm")
LEVELS = ((1.0, 900), (10.0, 8640), (300.0, 8928))
"""Interval in seconds and number of rows, finest first."""
LIGHT_LEVELS = ((15.0, 5760), (300.0, 8928))
"""Light is measured every 15 s: each measurement is kept for a day, means for a month."""
Times = NDArray[np.float64]
Values = NDArray[np.float32]


@dataclass(slots=True, frozen=True)
class HistoryWindow:
    """Rows of one interval, oldest first; ``values`` is time x object x column, NaN if unknown."""

    interval_s: float
    times: Times
    values: Values
    step: int = 1
    """One row in ``step`` was read; ``interval_s`` is the distance of the rows that were."""


class _Level:
    """The rows of one interval: in memory, in a file, or both."""

    def __init__(
        self,
        file: Callable[[np.dtype[Any]], RowFile] | None,
        interval_s: float,
        rows: int,
        shape: tuple[int, int],
        *,
        in_memory: bool,
    ) -> None:
        self.interval_s = interval_s
        self.rows = rows
        self._shape = shape
        self._kind = _row(*shape)
        self._file = None if file is None else file(self._kind)
        self._memory: Rows | None = None
        if self._file is None or in_memory:
            self._memory = np.zeros(rows, dtype=self._kind)
            if self._file is not None:
                self._memory[:] = self._file.read(0, rows)

    def bucket(self, time: float) -> int:
        return int(time // self.interval_s)

    def write(self, bucket: int, values: Values) -> None:
        place = bucket % self.rows
        row = np.zeros(1, dtype=self._kind)
        row["time"] = (bucket + 1) * self.interval_s
        row["values"] = values.reshape(-1)
        if self._memory is not None:
            self._memory[place] = row[0]
        if self._file is not None:
            self._file.write(place, row)

    def read(
        self, first: int, last: int, step: int = 1, of: NDArray[np.intp] | None = None
    ) -> tuple[Times, Values]:
        """Return every ``step``-th row of buckets ``first`` to ``last``, if it was written.

        ``of`` selects the objects (None is all); the others are not copied.
        """
        first = max(first, last - self.rows + 1)
        first += -first % step  # the same times for every reader
        wanted = (np.arange(first, last + 1, step) + 1) * self.interval_s
        rows = self._rows(first, last, step)
        known = rows["time"] == wanted
        times = wanted[known] - self.interval_s
        if of is None:
            return times, rows["values"][known].reshape(len(times), *self._shape)
        width = self._shape[1]
        cells = (of[:, None] * width + np.arange(width)).reshape(-1)
        values = rows["values"][np.flatnonzero(known)[:, None], cells]
        return times, values.reshape(len(times), len(of), width)

    def mean(self, first: int, last: int) -> Values | None:
        """Return the mean of the known values in buckets ``first`` to ``last``, None for no row.

        It adds row by row: a row fits into the processor's cache, all of them do not.
        """
        rows = self._rows(first, last)
        wanted = (np.arange(first, last + 1) + 1) * self.interval_s
        there = np.flatnonzero(rows["time"] == wanted)
        if not len(there):
            return None
        total, count = np.zeros((2, rows["values"].shape[1]))
        for row in there:
            values = rows["values"][row]
            known = values == values  # noqa: PLR0124 - NaN is not equal to itself
            np.add(total, values, out=total, where=known)
            count += known
        with np.errstate(invalid="ignore"):
            return (total / count).astype(np.float32)

    def written(self, bucket: int) -> bool:
        return bool(self._rows(bucket, bucket)["time"][0] == (bucket + 1) * self.interval_s)

    def _rows(self, first: int, last: int, step: int = 1) -> Rows:
        """Return the contents of the places of every ``step``-th bucket, ``first`` to ``last``."""
        if last < first:
            return np.zeros(0, dtype=self._kind)
        if step > 1:
            return np.concatenate(
                [self._piece(b % self.rows, 1) for b in range(first, last + 1, step)]
            )
        start, count = first % self.rows, last - first + 1
        pieces = [(start, min(count, self.rows - start)), (0, start + count - self.rows)]
        parts = [self._piece(at, many) for at, many in pieces if many > 0]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _piece(self, at: int, count: int) -> Rows:
        if self._memory is not None:
            return self._memory[at : at + count]
        if self._file is not None:
            return self._file.read(at, count)
        return np.zeros(count, dtype=self._kind)


_REWRITTEN = "rewritten"
"""In the description of files: their drafts are whole and take their places."""


def _row(objects: int, columns: int) -> np.dtype[Any]:
    return np.dtype([("time", "<f8"), ("values", "<f4", (objects * columns,))])


class RingBuffer:
    """The history of a site's endpoints or ports; other names start a new history."""

    def __init__(
        self,
        directory: Path | None,
        endpoints: Sequence[str],
        *,
        stem: str = "telemetry",
        columns: Sequence[str] = COLUMNS,
        levels: Sequence[tuple[float, int]] = LEVELS,
    ) -> None:
        """Name files after ``stem``; keep all in memory if ``directory`` is None. ServiceError."""
        self.endpoints = tuple(endpoints)
        self._place = {name: i for i, name in enumerate(self.endpoints)}
        self._columns = tuple(columns)
        self._kept = tuple(levels)
        self._stem = stem
        self._open: list[int] = [-1] * len(levels)
        self._writer = RowWriter()
        try:
            if directory is not None:
                directory.mkdir(parents=True, exist_ok=True)
                self._discard_others(directory)
            self._levels = [
                _Level(
                    self._file(directory, interval, rows),
                    interval,
                    rows,
                    (len(endpoints), len(columns)),
                    in_memory=number == 0,
                )
                for number, (interval, rows) in enumerate(levels)
            ]
        except OSError as error:
            raise ServiceError(
                "failed",
                f"the telemetry's history cannot be opened: {error.strerror}",
                object=f"directory/{directory}",
                hint="free disk space, or make the directory writable",
            ) from error

    def append(self, time: float, values: Values) -> None:
        """Write the sample of ``time``; close the coarser intervals that ended."""
        fine = self._levels[0]
        bucket = fine.bucket(time)
        if self._open[1] == -1:
            self._catch_up(time)
        for number in range(len(self._levels) - 1, 0, -1):
            level = self._levels[number]
            now, was = level.bucket(time), self._open[number]
            if was not in (-1, now):
                self._close(number, was)
            self._open[number] = now
        fine.write(bucket, values)

    def read(
        self,
        after: float,
        before: float,
        *,
        of: Sequence[str] | None = None,
        most: int | None = None,
        step: int = 1,
    ) -> HistoryWindow:
        """Return the rows of a span of time, in the finest interval that reaches back so far.

        The result lacks the last row while its coarse interval is open. ``of`` names
        the objects to read, in that order (None is all). Only every ``step``-th row is read, or
        fewer, so that there are at most ``most`` samples: rows times objects.
        """
        level = next(
            (lv for lv in self._levels if before - after <= lv.interval_s * lv.rows),
            self._levels[-1],
        )
        first, last = level.bucket(after), level.bucket(before)
        wanted = None if of is None else np.array([self._place[n] for n in of], dtype=np.intp)
        rows = min(last - first + 1, level.rows)
        count = len(self.endpoints) if wanted is None else len(wanted)
        step = step if most is None else max(step, -(-rows * count // most))
        times, values = level.read(first, last, step, wanted)
        return HistoryWindow(level.interval_s * step, times, values, step)

    def latest(self, now: float) -> HistoryWindow:
        """Return all rows of the finest interval."""
        interval, rows = self._kept[0]
        return self.read(now - interval * (rows - 1), now)

    async def flush(self) -> None:
        """Wait until the disk has all rows, for a bounded time."""
        await self._writer.flush()

    def _file(
        self, directory: Path | None, interval: float, rows: int
    ) -> Callable[[np.dtype[Any]], RowFile] | None:
        if directory is None:
            return None
        path = self._path(directory, interval)
        return lambda kind: RowFile(path, kind, rows, self._writer)

    def _catch_up(self, time: float) -> None:
        """Close the intervals that were open when the program ended."""
        for number, level in enumerate(self._levels[1:], 1):
            now = level.bucket(time)
            for bucket in (now - 2, now - 1):
                if not level.written(bucket):
                    self._close(number, bucket)

    def _close(self, number: int, bucket: int) -> None:
        level, finer = self._levels[number], self._levels[number - 1]
        ratio = round(level.interval_s / finer.interval_s)
        if number > 1 and 0 <= self._open[number - 1] < (bucket + 1) * ratio:
            # The last finer interval of this one may still be open: it ends at the same time.
            self._close(number - 1, (bucket + 1) * ratio - 1)
        mean = finer.mean(bucket * ratio, (bucket + 1) * ratio - 1)
        if mean is not None:
            level.write(bucket, mean)

    def _path(self, directory: Path, interval: float) -> Path:
        return directory / f"{self._stem}-{interval:g}s.ring"

    def _discard_others(self, directory: Path) -> None:
        """Delete files that were written for another set of endpoints; add columns to ours."""
        meta = directory / f"{self._stem}.json"
        meaning = {
            "endpoints": list(self.endpoints),
            "columns": list(self._columns),
            "levels": [list(level) for level in self._kept],
        }
        files = [self._path(directory, interval) for interval, _ in self._kept]
        before: Any = None
        with suppress(OSError, ValueError):
            before = json.loads(meta.read_text(encoding="utf-8"))
        if before == meaning:
            return
        try:
            if before != {**meaning, _REWRITTEN: True}:  # else ended before the drafts had names
                columns = before["columns"]
                if before != {**meaning, "columns": columns}:
                    raise ValueError  # other endpoints
                self._change_columns(directory, columns)
                _replace(meta, {**meaning, _REWRITTEN: True})
            for file in files:
                if (draft := draft_of(file)).exists():
                    draft.replace(file)
        except (OSError, ValueError, TypeError, KeyError):
            for file in files:
                file.unlink(missing_ok=True)
                draft_of(file).unlink(missing_ok=True)
        _replace(meta, meaning)

    def _change_columns(self, directory: Path, before: Sequence[str]) -> None:
        """Draft files with these columns from an earlier version's; what is new is unknown in their
        rows. OSError."""
        count = len(self.endpoints)
        places = [before.index(name) if name in before else -1 for name in self._columns]
        was, now = _row(count, len(before)), _row(count, len(self._columns))

        def changed(rows: Rows) -> Rows:
            found = np.zeros(len(rows), dtype=now)
            found["time"] = rows["time"]
            values = rows["values"].reshape(len(rows), count, len(before))
            known = np.concatenate([values, np.full_like(values[:, :, :1], np.nan)], axis=2)
            found["values"] = known[:, :, places].reshape(len(rows), -1)
            return found

        for interval, rows in self._kept:
            draft_of(self._path(directory, interval)).unlink(missing_ok=True)
            rewrite(self._path(directory, interval), was, now, rows, changed)


def _replace(file: Path, document: object) -> None:
    draft = draft_of(file)
    draft.write_text(json.dumps(document), encoding="utf-8")
    draft.replace(file)
