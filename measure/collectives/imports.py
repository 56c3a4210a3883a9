"""Reads the JSON that nccl-tests writes with ``-J``.

Its booleans are the strings "true" and "false", its NaN is "nan", and it holds the whole process
environment, tokens included: of that nothing is read.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping

from measure.collectives.definitions import CollectiveOperation
from measure.collectives.table import Half, TableRow
from measure.envelope import Body, Json, Row, ToolVersion
from measure.kinds import SettingsError

MOST_ENTRIES = 10_000
"""Longest list of results that is read."""
_HINT = "give the file that nccl-tests wrote with -J"
_TEXT = 16
_PROGRAM = re.compile(r"([a-z]+(?:_[a-z]+)*)_perf")
_LARGEST = 2**60


def read_nccl_tests(text: str) -> Body:
    """Return the rows of a file that nccl-tests wrote. Raises SettingsError."""
    document = _document(text)
    operation, ranks = _operation(document), _ranks(document)
    rows = [_row(entry, operation, ranks) for entry in entries(document)]
    summary = {
        "out_of_bounds": _count(_mapping(document.get("out_of_bounds")).get("count")),
        "average_bus_bw": _scaled(
            _number(_mapping(document.get("average_bus_bandwidth")).get("bandwidth")), 1e9
        ),
    }
    wrong = any(
        half["nwrong"] for row in rows for half in (row["out_of_place"], row["in_place"]) if half
    )
    return Body(
        rows=rows,
        summary=summary,
        tool=ToolVersion(name="nccl-tests", version=_version(document.get("nccl_version"))),
        invalid_because=["data were wrong"] if wrong else [],
    )


IMPORTS: Mapping[str, Callable[[str], Body]] = {"nccl-tests": read_nccl_tests}


def entries(document: Mapping[str, Json]) -> list[TableRow]:
    """Return the lines of the table in nccl-tests' own units. Raises SettingsError."""
    results = document.get("results")
    if not isinstance(results, list):
        raise SettingsError("results", "is not a list", _HINT)
    if len(results) > MOST_ENTRIES:
        raise SettingsError("results", f"has {len(results)} entries, more than {MOST_ENTRIES}")
    return [_entry(result, f"results[{place}]") for place, result in enumerate(results)]


def _document(text: str) -> Mapping[str, Json]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError("text", f"is not JSON: {error}", _HINT) from error
    if not isinstance(document, dict):
        raise SettingsError("text", "is not an object", _HINT)
    return document


def _entry(result: Json, where: str) -> TableRow:
    fields = _mapping(result)
    size, count = _count(fields.get("size")), _count(fields.get("count"))
    if size is None or count is None:
        raise SettingsError(where, "has no size and count")
    try:
        root = int(str(fields.get("root", "-1")).strip())
    except ValueError as error:
        raise SettingsError(f"{where}.root", "is not a rank") from error
    return TableRow(
        size,
        count,
        _word(fields.get("type")),
        _word(fields.get("redop")),
        root,
        _half(fields.get("out_of_place"), f"{where}.out_of_place"),
        _half(fields.get("in_place"), f"{where}.in_place"),
    )


def _half(given: Json, where: str) -> Half | None:
    if given is None:
        return None
    fields = _mapping(given)
    figures = [_number(fields.get(name)) for name in ("alg_bw", "bus_bw")]
    time = _number(fields.get("time", fields.get("cpu_time")))
    if time is None or None in figures:
        raise SettingsError(where, "lacks time, alg_bw or bus_bw")
    algbw, busbw = (figure or 0.0 for figure in figures)
    return Half(time, algbw, busbw, _number(fields.get("nwrong")))


def _row(entry: TableRow, operation: str, ranks: int | None) -> Row:
    return {
        "operation": operation,
        "placement": None,
        "group": 0,
        "ranks": ranks,
        "order": None,
        "crossings": None,
        "size": entry.size,
        "count": entry.count,
        "type": entry.type,
        "redop": entry.redop,
        "root": entry.root,
        "out_of_place": _base(entry.out_of_place),
        "in_place": _base(entry.in_place),
        "iterations": None,
        "time_max_s": None,
        "link_share": None,
        "disturbed": None,
        "note": "",
        "reason": "",
    }


def _base(half: Half | None) -> Row | None:
    """Return a half in base units; a figure that was NaN is None."""
    if half is None:
        return None
    wrong = half.wrong
    return {
        "time_s": _scaled(half.time_us, 1e-6),
        "time_ci": None,
        "alg_bw": _scaled(half.algbw_gbs, 1e9),
        "bus_bw": _scaled(half.busbw_gbs, 1e9),
        "nwrong": int(wrong) if wrong is not None and math.isfinite(wrong) else None,
        "n": 1,
    }


def _operation(document: Mapping[str, Json]) -> str:
    args = document.get("args")
    program = str(args[0])[-200:] if isinstance(args, list) and args else ""
    found = _PROGRAM.search(program.rpartition("/")[2])
    name = found[1] if found else ""
    return name if name in set(CollectiveOperation) else _word(name) or "unknown"


def _ranks(document: Mapping[str, Json]) -> int | None:
    """Return how many ranks a communicator had; None when the file does not contain it.

    ``devices`` has an entry for each process, of its first rank, and a process has ``nthreads`` x
    ``ngpus`` ranks. Each ``group`` is a communicator of its own.
    """
    config = _mapping(document.get("config"))
    threads, gpus = _count(config.get("nthreads")), _count(config.get("ngpus"))
    devices = config.get("devices")
    if not threads or not gpus or not isinstance(devices, list):
        return None
    firsts = Counter(_count(_mapping(device).get("rank")) for device in devices)
    whole = [rank is not None and rank % (threads * gpus) == 0 for rank in firsts]
    if not whole or not all(whole) or len(firsts) < len(devices):
        return None
    groups = Counter(_count(_mapping(device).get("group")) for device in devices)
    sizes = set(groups.values())
    return sizes.pop() * threads * gpus if len(sizes) == 1 else None


def _version(code: Json) -> str:
    """Return NCCL's version from its number: 22403 is 2.24.3."""
    number = _count(code)
    if number is None:
        return ""
    return f"NCCL {number // 10_000}.{number // 100 % 100}.{number % 100}"


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _word(value: Json) -> str:
    text = value if isinstance(value, str) else ""
    return text[:_TEXT] if text.isprintable() else ""


def _count(value: Json) -> int | None:
    sound = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST
    return value if sound else None


def _number(value: Json) -> float | None:
    """Return a figure, NaN for its string; None without one."""
    if value == "nan":
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= _LARGEST else None


def _scaled(value: float | None, factor: float) -> float | None:
    return value * factor if value is not None and math.isfinite(value) else None
