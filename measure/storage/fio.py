"""Reads fio's JSON (fio 3.x, ``--output-format=json`` or ``json+``): its own files, and probes'."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from measure.envelope import Body, Json, Tool
from measure.kinds import SettingsError
from measure.statistics import median, summarise
from measure.storage.checked import entries, figure, mapping, whole, words

MOST_JOBS = 4096
RAMP = "ramp"
"""The part of a point that does not count."""
DIRECTIONS: Final = ("read", "write")
_PERCENTILES = {
    "p50": "50.000000",
    "p95": "95.000000",
    "p99": "99.000000",
    "p999": "99.900000",
}


@dataclass(slots=True, frozen=True)
class Part:
    """One job of fio in one direction. Bytes, seconds."""

    name: str
    error: int
    """errno of its first failure; 0 without one."""
    io_bytes: int
    bytes_per_s: float
    iops: float
    latency_s: Mapping[str, float | None]
    """``mean`` of the whole latency; ``p50`` to ``p999`` of the time from submission on."""


def parts(document: Json, direction: str) -> list[Part]:
    """Return the jobs of a document that moved bytes, or failed; damaged ones are left out."""
    found = []
    for job in entries(mapping(document).get("jobs"), MOST_JOBS):
        fields = mapping(job)
        part = mapping(fields.get(direction))
        io_bytes, error = whole(part.get("io_bytes")), whole(fields.get("error"), 0, 4096)
        rate, iops = figure(part.get("bw_bytes")), figure(part.get("iops"))
        if io_bytes is None or error is None or rate is None or iops is None:
            continue
        if not io_bytes and not error:
            continue
        found.append(
            Part(words(fields.get("jobname")), error, io_bytes, rate, iops, _latency(part))
        )
    return found


def _latency(part: Mapping[str, Json]) -> dict[str, float | None]:
    known = mapping(mapping(part.get("clat_ns")).get("percentile"))
    latency = {"mean": figure(mapping(part.get("lat_ns")).get("mean"))}
    latency |= {name: figure(known.get(key)) for name, key in _PERCENTILES.items()}
    return {name: None if value is None else value / 1e9 for name, value in latency.items()}


def figures(measured: Sequence[Part]) -> dict[str, Json]:
    """Return the figures of a row from its repetitions: the median of each.

    ``spread`` has the interval of the throughput's median. Empty without repetitions.
    """
    spread = summarise([part.bytes_per_s for part in measured])
    if spread is None:
        return {}
    latency = {}
    for name in ("mean", *_PERCENTILES):
        seen = [value for part in measured if (value := part.latency_s.get(name)) is not None]
        latency[name] = median(seen) if seen else None
    return {
        "bytes_per_s": spread.median,
        "iops": median([part.iops for part in measured]),
        "latency_s": latency,
        "spread": {"bytes_per_s": spread.document()},
    }


def imported(text: str) -> Body:
    """Return a file of fio's as a measurement: one row per job and direction.

    Raises SettingsError for text that fio did not write.
    """
    start = text.find("{")  # messages may come before it
    try:
        document = mapping(json.loads(text[start:] if start >= 0 else ""))
    except (ValueError, RecursionError):
        document = {}
    version = words(document.get("fio version"))
    if not version or not entries(document.get("jobs"), 1):
        raise SettingsError("text", "it is no JSON of fio", "write it with --output-format=json")
    general = mapping(document.get("global options"))
    rows = [
        _row(mapping(job), general, direction)
        for job in entries(document["jobs"], MOST_JOBS)
        for direction in DIRECTIONS
        if parts({"jobs": [job]}, direction)
    ]
    return Body(
        rows=rows,
        tool=Tool(name="fio", version=version.removeprefix("fio-")),
        invalid_because=() if rows else ("no job of the file moved a byte",),
    )


def _row(job: Mapping[str, Json], general: Mapping[str, Json], direction: str) -> dict[str, Json]:
    (part,) = parts({"jobs": [job]}, direction)
    options = {**general, **mapping(job.get("job options"))}
    return {
        "job": part.name,
        "workers": _option(options.get("numjobs"), 1),
        "io_bytes": _option(options.get("bs"), 4096),
        "rw": words(options.get("rw")) or direction,
        "direction": direction,
        "path": "posix",
        "iodepth": _option(options.get("iodepth"), 1),
        **(figures([part]) if not part.error else _nothing()),
        "cpu_cores": None,
        "server_cpu_cores": None,
        "cached_share": None,
        "reason": f"fio: error {part.error}" if part.error else "",
    }


def _nothing() -> dict[str, Json]:
    return {"bytes_per_s": None, "iops": None, "latency_s": None, "spread": None}


def _option(value: Json, default: int) -> int | None:
    """Return fio's word for a number: ``64k`` is 65536; its default where it is absent."""
    if value is None:
        return default
    text = words(value).lower().removesuffix("b").removesuffix("i")
    factor = {"k": 2**10, "m": 2**20, "g": 2**30}.get(text[-1:], 1)
    digits = text[:-1] if factor > 1 else text
    return int(digits) * factor if digits.isascii() and digits.isdigit() else None
