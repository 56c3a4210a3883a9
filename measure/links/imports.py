"""Reads what OSU's micro-benchmarks and perftest print for people.

OMB: ``# OSU MPI Latency Test v7.4`` and columns of size and latency in us, or bandwidth in MB/s of
10^6 bytes. perftest 4.5: a line of headings that begins with ``#bytes``; latencies in us, bandwidth
in MB/s of 2^20 bytes or, with ``--report_gbits``, in Gb/s. Its JSON is invalid
(linux-rdma/perftest#216).

Neither file says which two machines measured, so a row has no ends and no class.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from measure.envelope import Body, Json, Row, Tool
from measure.kinds import SettingsError

MOST_ROWS = 10_000
MEBI = 2.0**20
_OSU = re.compile(r"#\s*OSU (?P<what>[^\n]{1,60}?) Test(?: v(?P<version>[0-9][0-9A-Za-z.]{0,15}))?")
_BANDWIDTH = re.compile(r"bandwidth", re.IGNORECASE)
_HEAD = ("#bytes", "#iterations")
_COLUMN = re.compile(r"([^\[\]]{1,40})\[([^\[\]]{1,20})\]")


def read_osu(text: str) -> Body:
    """Return the rows of the output of osu_latency, osu_bw or osu_bibw. Raises SettingsError."""
    rows: list[Row] = []
    figure, version, title = "", "", ""
    for line in text.splitlines():
        found = _OSU.match(line.strip())
        if found is not None:
            title = found["what"]
            figure = "bandwidth" if _BANDWIDTH.search(title) else "latency_s"
            version = version or found["version"] or ""
            continue
        words = line.split()
        if not figure or line.lstrip().startswith("#") or not _numbers(words):
            continue
        size, value = _size(words[0]), float(words[1])
        if size is None or not value > 0:
            continue
        one = value * (1e6 if figure == "bandwidth" else 1e-6)
        rows.append(_row(size, title, **{figure: _summary(one)}))
    if not rows:
        raise SettingsError(
            "text",
            "has no rows below a line `# OSU ... Test`",
            "give what osu_latency or osu_bw printed",
        )
    return _body(rows, Tool(name="osu", version=version))


def read_perftest(text: str) -> Body:
    """Return the rows that perftest 4.5 printed, such as ib_send_bw. Raises SettingsError."""
    rows: list[Row] = []
    title, columns = "", tuple[str, ...]()
    for line in text.splitlines():
        if line.endswith((" BW Test", " Latency Test")):
            title, columns = line.strip().removesuffix(" Test")[:60], ()
        elif line.split()[:2] == [*_HEAD]:
            columns = (*_HEAD, *_columns(line))
        elif columns and _numbers(words := line.split()) and len(words) >= len(columns):
            row = _perftest_row(dict(zip(columns, words, strict=False)), title)
            if row is not None:
                rows.append(row)
    if not rows:
        raise SettingsError(
            "text",
            "has no rows below a line `#bytes #iterations ...`",
            "give what ib_send_lat, ib_write_bw and the like printed, not their JSON",
        )
    return _body(rows, Tool(name="perftest"))


IMPORTS: Mapping[str, Callable[[str], Body]] = {"osu": read_osu, "perftest": read_perftest}


def _columns(line: str) -> Iterator[str]:
    """Yield the headings with a unit, such as ``BW average[MB/sec]``; the unit ends one."""
    for found in _COLUMN.finditer(line.partition(_HEAD[1])[2]):
        yield f"{found[1].strip()}[{found[2]}]"


def _perftest_row(cells: Mapping[str, str], title: str) -> Row | None:
    size = _size(cells.get("#bytes", ""))
    if size is None:
        return None
    unit = {"Gb/sec": 1e9 / 8, "MB/sec": MEBI, "MiB/sec": MEBI}
    for name, factor in unit.items():
        average = _positive(cells.get(f"BW average[{name}]"))
        if average is not None:
            peak = _positive(cells.get(f"BW peak[{name}]"))
            most = None if peak is None else peak * factor
            return _row(size, title, bandwidth=_summary(average * factor, high=most))
    usual = _positive(cells.get("t_typical[usec]")) or _positive(cells.get("t_avg[usec]"))
    if usual is None:
        return None
    least, most = (_positive(cells.get(f"t_{name}[usec]")) for name in ("min", "max"))
    return _row(
        size,
        title,
        latency_s=_summary(
            usual * 1e-6,
            low=None if least is None else least * 1e-6,
            high=None if most is None else most * 1e-6,
        ),
    )


def _row(
    size: int, test: str, *, latency_s: Row | None = None, bandwidth: Row | None = None
) -> Row:
    return {
        "from": None,
        "to": None,
        "class": None,
        "test": test,
        "size": size,
        "alone": None,
        "latency_s": latency_s,
        "bandwidth": bandwidth,
        "group": None,
    }


def _summary(value: float, *, low: float | None = None, high: float | None = None) -> Row:
    """One run's figure: it has no interval."""
    return {"median": value, "ci": None, "min": low, "max": high, "n": 1}


def _body(rows: Sequence[Row], tool: Tool) -> Body:
    if len(rows) > MOST_ROWS:
        raise SettingsError("text", f"has {len(rows)} rows, more than {MOST_ROWS}")
    best = [row["bandwidth"]["median"] for row in rows if row["bandwidth"]]
    least = [row["latency_s"]["median"] for row in rows if row["latency_s"]]
    summary: dict[str, Json] = {
        "bandwidth": max(best, default=None),
        "latency_s": min(least, default=None),
    }
    return Body(rows=rows, summary=summary, tool=tool)


def _numbers(words: Sequence[str]) -> bool:
    if len(words) < 2:
        return False
    try:
        return all(math.isfinite(float(word)) for word in words[:2])
    except ValueError:
        return False


def _size(word: str) -> int | None:
    return int(word) if re.fullmatch(r"[0-9]{1,15}", word) and int(word) > 0 else None


def _positive(word: str | None) -> float | None:
    try:
        value = float(word or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 < value < 1e15 else None
