"""Reads fio's JSON (fio 3.x, ``--output-format=json`` or ``json+``): its own files, and probes'."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from measure.envelope import Body, Json, ToolVersion
from measure.kinds import SettingsError
from measure.statistics import median, summarise
from measure.storage.checked import entries, figure, mapping, whole, words

MOST_JOBS = 4096
_FIRST_MAJOR = 3
_MOST_DOCUMENTS = 1000
_DIGITS = 7
_START = re.compile(r"^\{", re.MULTILINE)
_MAJOR = re.compile(r"fio-([0-9]{1,3})\b")
_OTHER_FORMS = {
    "the terse form of fio": re.compile(
        r"^([0-9];fio-[0-9]|[^;\n]{1,200};[0-9]+;[0-9]+;[0-9]+;)", re.MULTILINE
    ),
    "the normal form of fio": re.compile(
        r"\(groupid=[0-9]+, jobs=[0-9]+\): err=|: \(g=[0-9]+\): rw="
    ),
}
_DECODER = json.JSONDecoder()
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
class FioResult:
    """One job of fio in one direction. Bytes, seconds."""

    name: str
    error: int
    """errno of its first failure; 0 without one."""
    io_bytes: int
    bytes_per_s: float
    iops: float
    latency_s: Mapping[str, float | None]
    """``mean`` of the whole latency; ``p50`` to ``p999`` of the time from submission on."""


def parts(document: Json, direction: str) -> list[FioResult]:
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
            FioResult(words(fields.get("jobname")), error, io_bytes, rate, iops, _latency(part))
        )
    return found


def _latency(part: Mapping[str, Json]) -> dict[str, float | None]:
    known = mapping(mapping(part.get("clat_ns")).get("percentile"))
    latency = {"mean": figure(mapping(part.get("lat_ns")).get("mean"))}
    latency |= {name: figure(known.get(key)) for name, key in _PERCENTILES.items()}
    return {name: None if value is None else value / 1e9 for name, value in latency.items()}


def figures(measured: Sequence[FioResult]) -> dict[str, Json]:
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

    The threads of a job that fio lists one by one are one row. Raises SettingsError for text that
    fio 3 did not write as JSON; it names the form where fio wrote it in another one.
    """
    document = _document(text)
    version = words(document.get("fio version")).removeprefix("fio-")
    general = mapping(document.get("global options"))
    rows = [
        row
        for threads in _jobs(document)
        for direction in DIRECTIONS
        if (row := _row(threads, general, direction)) is not None
    ]
    return Body(
        rows=rows,
        tool=ToolVersion(name="fio", version=version),
        invalid_because=() if rows else ("no job of the file read or wrote a byte",),
    )


def _document(text: str) -> Mapping[str, Json]:
    """Return the last document of a text, which may have messages around it. SettingsError.

    With ``--status-interval`` each document has all figures up to its time.
    """
    found: Mapping[str, Json] = {}
    end = 0
    for start in islice(_START.finditer(text), _MOST_DOCUMENTS):
        if start.start() < end:
            continue
        try:
            value, end = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            continue
        if words(mapping(value).get("fio version")):
            found = mapping(value)
    form = _other_form(text, found)
    if form or not entries(found.get("jobs"), 1):
        raise SettingsError(
            "text",
            f"it is {form or 'no JSON of fio'}",
            "write it with fio 3 and --output-format=json",
        )
    return found


def _other_form(text: str, document: Mapping[str, Json]) -> str:
    """Return the name of a form of fio's that is not read, empty for any other text."""
    if not document:
        return next((form for form, sign in _OTHER_FORMS.items() if sign.search(text)), "")
    version = words(document.get("fio version"))
    major = _MAJOR.match(version)
    if major is not None and int(major[1]) < _FIRST_MAJOR:
        return f"of {version}, whose JSON has other units"
    if "client_stats" in document:
        return "of fio --client, which sums its servers"
    if any(_only_mixed(mapping(job)) for job in entries(document.get("jobs"), MOST_JOBS)):
        return "of unified_rw_reporting, which adds reads to writes"
    return ""


def _only_mixed(job: Mapping[str, Json]) -> bool:
    return "mixed" in job and not any(direction in job for direction in DIRECTIONS)


def _jobs(document: Mapping[str, Json]) -> list[list[Mapping[str, Json]]]:
    """Return the entries of each job: one, or one for each of its threads."""
    found: dict[str, list[Mapping[str, Json]]] = {}
    for entry in entries(document.get("jobs"), MOST_JOBS):
        job = mapping(entry)
        same = [job.get(name) for name in ("jobname", "groupid", "job options")]
        found.setdefault(json.dumps(same, sort_keys=True), []).append(job)
    return list(found.values())


def _row(
    threads: Sequence[Mapping[str, Json]], general: Mapping[str, Json], direction: str
) -> dict[str, Json] | None:
    measured = parts({"jobs": threads}, direction)
    if not measured:
        return None
    options = {**general, **mapping(threads[0].get("job options"))}
    error = next((part.error for part in measured if part.error), 0)
    return {
        "job": measured[0].name,
        "workers": len(threads) if len(threads) > 1 else _number(options, "numjobs"),
        "io_bytes": _request_bytes(threads, direction),
        "rw": words(options.get("rw") or options.get("readwrite")) or direction,
        "direction": direction,
        "path": "posix",
        "iodepth": _number(options, "iodepth"),
        **(_nothing() if error else figures([_together(measured)])),
        "cpu_cores": None,
        "server_cpu_cores": None,
        "cached_share": None,
        "reason": f"fio: error {error}" if error else "",
    }


def _together(measured: Sequence[FioResult]) -> FioResult:
    """Return the sum of threads that ran at the same time; percentiles have none."""
    first, *others = measured
    if not others:
        return first
    means = [part.latency_s["mean"] for part in measured]
    total = sum(part.iops for part in measured)
    mean = None
    if total and None not in means:
        mean = sum((m or 0.0) * part.iops for m, part in zip(means, measured, strict=True)) / total
    return FioResult(
        first.name,
        0,
        sum(part.io_bytes for part in measured),
        sum(part.bytes_per_s for part in measured),
        total,
        {"mean": mean, **dict.fromkeys(_PERCENTILES)},
    )


def _request_bytes(threads: Sequence[Mapping[str, Json]], direction: str) -> int | None:
    """Return the size of each request, of what fio counted; None when they had several sizes.

    The text of an option is ambiguous: ``64KiB`` is 64,000 bytes to fio unless ``kb_base`` is 1000.
    """
    sides = [mapping(thread.get(direction)) for thread in threads]
    moved = sum(whole(side.get("io_bytes")) or 0 for side in sides)
    requests = sum(whole(side.get("total_ios")) or 0 for side in sides)
    return moved // requests if requests and moved and moved % requests == 0 else None


def _nothing() -> dict[str, Json]:
    return {"bytes_per_s": None, "iops": None, "latency_s": None, "spread": None}


def _number(options: Mapping[str, Json], name: str) -> int | None:
    """Return an option that is a count; 1, which is fio's default, where it is absent."""
    text = words(options.get(name, "1"))
    return int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS else None
