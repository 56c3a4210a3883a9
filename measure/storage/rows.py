"""Turns the lines of storage probes into rows; what is missing or wrong is a row of nulls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from measure.envelope import Json, Row
from measure.kinds import Line, MeasuredEndpoint, RunEnd
from measure.storage import fio, gds
from measure.storage.checked import entries, figure, mapping, whole, words
from measure.storage.plan import StorageLimits, points

CACHED = 0.01
"""Share of the asked bytes that may come from memory in a measurement of the disk."""
MOST_MISSING = 0.2
MOST_REPETITIONS = 100

Point = tuple[str, str, int, int]
"""Path, direction, workers, bytes of a transfer."""


@dataclass(slots=True)
class StorageLines:
    """The lines of one run's probe, checked."""

    points: dict[Point, Row] = field(default_factory=dict)
    device: Mapping[str, Json] = field(default_factory=dict)
    refused: str = ""
    version: str = ""
    gdscheck: gds.GdsCheck | None = None


def collect(lines: Iterable[Line], run: int) -> StorageLines:
    """Collect the lines of one run. The first line of a point counts."""
    found = StorageLines()
    for line in lines:
        if line.run != run or line.rank != 0:
            continue
        match line.record.get("probe"):
            case "point":
                key = _point(line.record)
                if key is not None:
                    found.points.setdefault(key, line.record)
                    found.version = found.version or words(line.record.get("version"))
            case "device":
                found.device = line.record
            case "gdscheck":
                text = line.record.get("text")
                found.gdscheck = gds.check(text) if isinstance(text, str) else None
            case "refused":
                hint = words(line.record.get("hint"))
                found.refused = words(line.record.get("reason")) + (f" ({hint})" if hint else "")
            case "error":
                found.refused = found.refused or words(line.record.get("message"))
            case _:
                pass
    return found


def _point(record: Row) -> Point | None:
    workers, io_bytes = whole(record.get("workers"), 1), whole(record.get("io_bytes"), 1)
    path, rw = words(record.get("path")), words(record.get("rw"))
    if workers is None or io_bytes is None or not path or not rw:
        return None
    return path, rw, workers, io_bytes


def rows(
    settings: Row, arm: StorageLimits, place: MeasuredEndpoint, said: StorageLines, end: RunEnd
) -> list[dict[str, Json]]:
    """Return one row for each point that was asked for, in the grid's order."""
    missing = said.refused or end.reason or "the probe did not measure it"
    found = []
    for point in points(settings):
        record = said.points.get(point)
        asked, rw, workers, io_bytes = point
        measured = _measured(record, asked, rw, settings) if record is not None else {}
        reason = "" if measured.get("bytes_per_s") is not None else _why(record) or missing
        found.append(
            {
                "endpoint": place.endpoint,
                "server": place.server,
                "io_limit_bps": arm.io_bps,
                "memory_bytes": arm.memory_bytes,
                "path": measured.get("path", asked),
                "rw": rw,
                "workers": workers,
                "io_bytes": io_bytes,
                "iodepth": settings["iodepth"] if asked == "posix" else None,
                **{
                    name: measured.get(name)
                    for name in (
                        *("bytes_per_s", "iops", "latency_s", "spread"),
                        *("cpu_cores", "server_cpu_cores", "cached_share", "repetitions"),
                    )
                },
                "reason": reason,
            }
        )
    return found


def _why(record: Row | None) -> str:
    """Return why a point that the probe tried has no figures."""
    if record is None:
        return ""
    direction = "write" if words(record.get("rw")).endswith("write") else "read"
    failed = [part.error for part in fio.parts(record.get("fio"), direction) if part.error]
    if failed:
        return f"fio: {ERRORS.get(failed[0], f'error {failed[0]}')}"
    return words(record.get("reason")) or "the tool's output has no figures"


ERRORS: Mapping[int, str] = {
    5: "input/output error",
    13: "permission denied",
    22: "the file system refuses it (invalid argument); is direct I/O possible there?",
    28: "no space left",
    30: "the file system is read-only",
    122: "the quota is exceeded",
}
"""The reason in a row, by errno of Linux."""


def _measured(record: Row, asked: str, rw: str, settings: Row) -> dict[str, Json]:
    cores = mapping(record.get("cores"))
    general: dict[str, Json] = {
        "cpu_cores": figure(cores.get("container"), 0, 1e5),
        "server_cpu_cores": figure(cores.get("server"), 0, 1e5),
    }
    if record.get("reason"):
        return {}
    if asked == "posix":
        return {**general, **_by_fio(record, "write" if rw.endswith("write") else "read")}
    return {**general, **_by_gdsio(record, asked, writes=rw.endswith("write"))}


def _by_fio(record: Row, direction: str) -> dict[str, Json]:
    parts = fio.parts(record.get("fio"), direction)
    if any(part.error for part in parts):
        return {}
    measured = [part for part in parts if part.name != fio.RAMP][:MOST_REPETITIONS]
    asked = sum(part.io_bytes for part in parts)
    blocks = figure(record.get("block_bytes"))
    share = None if blocks is None or not asked else min(max(1 - blocks / asked, 0.0), 1.0)
    return {
        "path": "posix",
        **fio.figures(measured),
        "cached_share": share,
        "repetitions": len(measured),
    }


def _by_gdsio(record: Row, asked: str, *, writes: bool) -> dict[str, Json]:
    texts = [text for text in entries(record.get("gdsio"), MOST_REPETITIONS) if type(text) is str]
    lines = [line for text in texts if (line := gds.line(text)) is not None]
    counters = [text if type(text) is str else None for text in entries(record.get("counters"), 2)]
    before, after = counters if len(counters) == 2 else (None, None)
    return {
        "path": gds.path(asked, before, after, writes=writes),
        **gds.figures(lines),
        "cached_share": None,
        "repetitions": len(lines),
    }


def doubts(settings: Row, found: Sequence[Row], refused: Sequence[str]) -> list[str]:
    """Return why the measurement does not count; nothing if it does."""
    because = list(dict.fromkeys(reason for reason in refused if reason))
    empty = sum(row["bytes_per_s"] is None for row in found)
    if empty > MOST_MISSING * len(found):
        because.append(f"{empty} of {len(found)} points were not measured")
    fewer = sum(
        row["bytes_per_s"] is not None and row["repetitions"] < settings["repetitions"]
        for row in found
    )
    if fewer:
        because.append(f"{fewer} points have fewer than {settings['repetitions']} repetitions")
    cached = sum((row["cached_share"] or 0.0) > CACHED for row in found)
    if settings["direct"] and cached:
        because.append(f"memory answered more than 1 % of {cached} points that ask the disk")
    return because
