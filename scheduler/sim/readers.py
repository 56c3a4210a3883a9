"""Reads public trace formats and the project's own CSV format.

``read`` recognises a format by its header. Formats without job times are rejected with the
reason; rows that are not GPU jobs are left out and counted in ``Trace.notes``.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from math import isfinite

from scheduler.sim.gavel import GavelTable
from scheduler.sim.trace import Trace, TraceError, TraceJob

Row = Mapping[str, str]
OWN_COLUMNS = ("name", "submit_s", "gpus", "duration_s")
OWN_OPTIONAL = ("model", "compute_s", "comm_s")


class Skip(Exception):  # noqa: N818 - not an error: the row is not a GPU job
    """A well-formed row that is not a job to replay."""


class _Fields:
    """One row with typed access; errors name column and value.

    ``zones`` is shared by all rows: whether times of a column have a zone, and since which line.
    """

    def __init__(
        self, source: str, line: int, row: Row, zones: dict[str, tuple[bool, int]] | None = None
    ) -> None:
        self.source, self.line, self._row = source, line, row
        self._zones = {} if zones is None else zones

    def fail(self, reason: str, fix: str = "") -> TraceError:
        return TraceError(self.source, self.line, reason, fix)

    def text(self, column: str) -> str:
        if column not in self._row:
            raise self.fail(f"the file has no column {column}", "add it, or replay another trace")
        return self._row[column].strip()

    def number(self, column: str) -> float:
        text = self.text(column)
        try:
            value = float(text if text.isascii() and "_" not in text else "nan")
        except ValueError:
            value = float("nan")
        if not isfinite(value):
            raise self.fail(f"{column} is {text!r}, not a number", "correct the row")
        return value

    def moment(self, column: str) -> float:
        """Return seconds since 1970; times without a zone are one place's wall clock.

        Times with and without a zone have no common origin: a column has one kind only.
        """
        text = self.text(column)
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            raise self.fail(f"{column} is {text!r}, not a time", "YYYY-MM-DD HH:MM:SS") from None
        zoned = when.tzinfo is not None
        before, line = self._zones.setdefault(column, (zoned, self.line))
        if before is not zoned:
            has = "a time zone" if zoned else "no time zone"
            raise self.fail(
                f"{column} {text!r} has {has}, unlike line {line}",
                "give every time a zone, or none",
            )
        return (when - datetime(1970, 1, 1, tzinfo=UTC if zoned else None)).total_seconds()

    def count(self, column: str) -> int:
        value = self.number(column)
        if value != int(value):
            raise self.fail(f"{column} is {value}, not a whole number", "correct the row")
        return int(value)


def _own(f: _Fields) -> TraceJob:
    profile = None
    if f.text("compute_s") or f.text("comm_s"):
        profile = f.number("compute_s"), f.number("comm_s")
        if min(profile) < 0 or sum(profile) <= 0:
            raise f.fail("compute_s and comm_s must be 0 or more, not both 0", "correct the row")
    return TraceJob(
        f.text("name"),
        f.number("submit_s"),
        f.count("gpus"),
        f.number("duration_s"),
        f.text("model"),
        profile,
    )


def _philly(f: _Fields) -> TraceJob:
    return TraceJob(
        f"job{f.line}", f.moment("timestamp"), f.count("num_gpus"), f.number("duration")
    )


def _tiresias(f: _Fields) -> TraceJob:
    return TraceJob(
        f.text("job_id"), f.number("submit_time"), f.count("num_gpu"), f.number("duration")
    )


def _chronus(f: _Fields) -> TraceJob:
    if f.count("num_gpu") == 0:
        raise Skip("jobs without a GPU")
    return _tiresias(f)


def _muri(f: _Fields) -> TraceJob:
    job = _tiresias(f)  # published in thousandths of a second
    return replace(job, submit_s=job.submit_s / 1000, duration_s=job.duration_s / 1000)


def _kalos(f: _Fields) -> TraceJob:
    compute, comm = f.number("iteration_computing_time"), f.number("iteration_networking_time")
    return TraceJob(
        f.text("job_id"),
        f.number("arrival_time"),
        f.count("gpu_workers"),
        f.number("num_iteration") * (compute + comm),
        profile=(compute, comm),
    )


def _openb(f: _Fields) -> TraceJob:
    if f.count("num_gpu") == 0:
        raise Skip("pods without a GPU")
    created, deleted = f.number("creation_time"), f.text("deletion_time")
    if not deleted:
        raise Skip("pods without an end")
    if not f.text("scheduled_time"):
        raise Skip("pods that never ran")
    run = f.number("deletion_time") - f.number("scheduled_time")
    # gpu_milli below 1000 is a shared GPU; an endpoint has one owner, so it counts whole.
    return TraceJob(f.text("name"), created, f.count("num_gpu"), run)


def _dlrm(f: _Fields) -> TraceJob:
    if f.count("gpu_request") == 0:
        raise Skip("instances without a GPU")
    if not f.text("creation_time") or not f.text("deletion_time"):
        raise Skip("instances whose start or end lies outside the trace")
    start = f.number("scheduled_time") if f.text("scheduled_time") else f.number("creation_time")
    return TraceJob(
        f.text("instance_sn"),
        f.number("creation_time"),
        f.count("gpu_request"),
        f.number("deletion_time") - start,
    )


_FORMATS: tuple[tuple[str, frozenset[str], Callable[[_Fields], TraceJob]], ...] = (
    ("lightloom", frozenset(OWN_COLUMNS), _own),
    ("philly", frozenset({"timestamp", "duration", "num_gpus"}), _philly),
    ("muri", frozenset({"num_gpu", "submit_time", "duration", "iteration_time"}), _muri),
    ("chronus", frozenset({"num_gpu", "submit_time", "duration", "expect_time_list"}), _chronus),
    ("tiresias", frozenset({"job_id", "num_gpu", "submit_time", "duration"}), _tiresias),
    ("kalos", frozenset({"arrival_time", "num_iteration", "gpu_workers"}), _kalos),
    ("openb", frozenset({"num_gpu", "creation_time", "deletion_time", "scheduled_time"}), _openb),
    ("dlrm", frozenset({"instance_sn", "gpu_request", "creation_time", "deletion_time"}), _dlrm),
)
_REFUSED: tuple[tuple[frozenset[str], str], ...] = (
    (
        frozenset({"application", "num_replicas", "time"}),
        "Sia/Pollux workloads have no durations: those follow from an application's throughput"
        " model, which is not part of the file",
    ),
    (frozenset({"num_gpu", "gpu_milli"}), "this pod list has no times"),
)


def read(lines: Iterable[str], source: str, table: GavelTable | None = None) -> Trace:
    """Read a trace in any known format.

    Only Gavel's traces need ``table``: they give steps, and durations follow from the measured
    steps per second. Raises TraceError with file, line and reason.
    """
    stream = iter(lines)
    head = next(stream, "")
    if "\t" in head:
        return _gavel(_chain(head, stream), source, table)
    _, columns = next(_values([head.lstrip("\ufeff")], source, 1), (1, []))
    known = [c.strip() for c in columns]
    if not known:
        raise TraceError(source, 0, "the file is empty")
    for _, needed, parse in _FORMATS:
        if needed <= set(known):
            _check_once(known, source)
            if parse is _own:
                _check_own(known, source)
            return _rows(_values(stream, source, 2), known, source, parse)
    for needed, reason in _REFUSED:
        if needed <= set(known):
            raise TraceError(source, 1, reason, "replay another trace")
    names = ", ".join(name for name, _, _ in _FORMATS)
    raise TraceError(
        source, 1, "no known trace format", f"known: {names}, gavel; see docs/simulator.md"
    )


def _check_once(columns: list[str], source: str) -> None:
    twice = [name for name, count in Counter(columns).items() if count > 1]
    if twice:
        raise TraceError(source, 1, f"several columns have the name {twice[0]!r}", "rename one")


def _check_own(columns: list[str], source: str) -> None:
    strange = set(columns) - {*OWN_COLUMNS, *OWN_OPTIONAL}
    if strange:
        raise TraceError(
            source,
            1,
            f"unknown columns: {', '.join(sorted(strange))}",
            f"known: {', '.join((*OWN_COLUMNS, *OWN_OPTIONAL))}",
        )


def _values(lines: Iterable[str], source: str, first: int) -> Iterator[tuple[int, list[str]]]:
    """Yield each row of a CSV text with the line where it begins; ``first`` is the text's own."""
    rows = csv.reader(lines, strict=True)
    while True:
        line = first + rows.line_num
        try:
            values = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise TraceError(source, line, f"not CSV: {error}", "close its quotes") from None
        yield line, values


def _rows(
    rows: Iterable[tuple[int, list[str]]],
    columns: list[str],
    source: str,
    parse: Callable[[_Fields], TraceJob],
) -> Trace:
    jobs, skipped = [], Counter[str]()
    absent = dict.fromkeys(OWN_OPTIONAL, "")
    zones: dict[str, tuple[bool, int]] = {}
    for line, values in rows:
        if not values:
            continue
        if len(values) != len(columns):
            raise TraceError(
                source, line, f"{len(values)} columns, the header has {len(columns)}", "correct it"
            )
        fields = _Fields(source, line, absent | dict(zip(columns, values, strict=True)), zones)
        try:
            jobs.append(replace(parse(fields), line=line))
        except Skip as reason:
            skipped[str(reason)] += 1
    return Trace.of(source, jobs, _notes(skipped))


def _notes(skipped: Mapping[str, int]) -> list[str]:
    return [f"{count} {what} left out" for what, count in skipped.items()]


def _chain(head: str, rest: Iterator[str]) -> Iterator[str]:
    yield head
    yield from rest


def _gavel(lines: Iterable[str], source: str, table: GavelTable | None) -> Trace:
    """Read Gavel's tab-separated rows: type, command, flag, data dir, steps, arrival, GPUs."""
    if table is None:
        raise TraceError(
            source,
            0,
            "Gavel's traces give steps; their durations need the measured throughputs",
            "give simulation_throughputs.json with --gavel-table",
        )
    jobs = []
    for line, text in enumerate(lines, start=1):
        values = text.rstrip("\r\n").split("\t")
        if len(values) != 7:
            raise TraceError(source, line, f"{len(values)} columns instead of 7", "correct it")
        fields = _Fields(
            source, line, {"steps": values[4], "arrival": values[5], "gpus": values[6]}
        )
        gpus, model = fields.count("gpus"), values[0]
        rate = table.steps_per_s(model, gpus)
        if rate is None:
            raise fields.fail(f"the table has no throughput of {model!r}", "use the trace's own")
        name = f"{source.rpartition('/')[2].removesuffix('.trace')}-{line}"
        jobs.append(
            TraceJob(
                name,
                fields.number("arrival"),
                gpus,
                fields.number("steps") / rate,
                model,
                line=line,
            )
        )
    return Trace.of(source, jobs)


def merge(name: str, parts: Iterable[Trace]) -> Trace:
    """Merge traces whose sources share a clock (Gavel's virtual clusters)."""
    jobs: list[TraceJob] = []
    notes: list[str] = []
    for part in parts:
        jobs += [replace(job, submit_s=job.submit_s + part.origin_s) for job in part.jobs]
        notes += part.notes
    return Trace.of(name, jobs, notes)
