"""Reads what OSU's micro-benchmarks and perftest print for people.

OMB: ``# OSU MPI Latency Test v7.4``, a line of headings that begins with ``# Size``, and columns;
latency in us, bandwidth in MB/s of 10^6 bytes. For a non-blocking collective the time of its pure
communication counts. perftest 4.5: a line of headings that begins with ``#bytes``; latencies in
us, bandwidth in MB/s of 2^20 bytes or, with ``--report_gbits``, in Gb/s. Its JSON is invalid
(linux-rdma/perftest#216).

Neither file names the two machines, so a row has no ends and no class.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from measure.envelope import Body, Json, Row, ToolVersion
from measure.kinds import SettingsError

MOST_ROWS = 10_000
MEBI = 2.0**20
_OSU = re.compile(r"#\s*OSU (?P<what>[^\n]{1,60}?) Test(?: v(?P<version>[0-9][0-9A-Za-z.]{0,15}))?")
_OSU_SIZE = re.compile(r"#\s*Size\b(?P<columns>.*)")
_OSU_HEADS = re.compile(r"(?<=\))\s*|\s{2,}")
"""Between two headings: after a unit in parentheses, or two blanks and more."""
_OSU_FIGURES: Sequence[tuple[str, str, float]] = (
    ("Pure Comm.(us)", "latency_s", 1e-6),
    ("Avg Latency(us)", "latency_s", 1e-6),
    ("Latency(us)", "latency_s", 1e-6),
    ("Bandwidth(MB/s)", "bandwidth", 1e6),
    ("MB/s", "bandwidth", 1e6),
)
"""Heading without blanks around its unit, figure and factor; the first that a file has counts."""
_OSU_WRONG = re.compile(r"validation error", re.IGNORECASE)
_HEAD = ("#bytes", "#iterations")
_COLUMN = re.compile(r"([^\[\]]{1,40})\[([^\[\]]{1,20})\]")


def read_osu(text: str) -> Body:
    """Return the rows of the output of benchmarks such as osu_latency and osu_bw.

    Raises SettingsError, also for a benchmark without a column of latency or bandwidth by size.
    """
    rows: list[Row] = []
    version, title, columns = "", "", tuple[str, ...]()
    wrong = False
    for line in text.splitlines():
        wrong = wrong or _OSU_WRONG.search(line) is not None
        if (found := _OSU.match(line.strip())) is not None:
            title, columns = found["what"], ()
            version = version or found["version"] or ""
        elif title and (heads := _OSU_SIZE.match(line.strip())) is not None:
            columns = _osu_columns(heads["columns"], title)
        elif len(words := line.split()) == len(columns) + 1 and columns:
            cells = dict(zip(columns, words[1:], strict=True))
            wrong = wrong or cells.get("Validation", "Pass").lower() != "pass"
            row = _osu_row(words[0], cells, title)
            if row is not None:
                rows.append(row)
    if not rows:
        raise SettingsError(
            "text",
            "has no rows below the lines `# OSU ... Test` and `# Size ...`",
            "give what osu_latency or osu_bw printed",
        )
    return _body(rows, ToolVersion(name="osu", version=version), wrong=wrong)


def _osu_columns(text: str, title: str) -> tuple[str, ...]:
    """Return the headings right of the size, without blanks before a unit. SettingsError."""
    heads = tuple(h.replace(" (", "(") for h in _OSU_HEADS.split(text.strip()) if h)
    if not any(head in heads for head, _, _ in _OSU_FIGURES):
        raise SettingsError(
            "text",
            f"has no column of latency in us or bandwidth in MB/s: {title} has "
            f"{', '.join(heads)[:80] or 'none'}",
            "give what osu_latency or osu_bw printed",
        )
    return heads


def _osu_row(size: str, cells: Mapping[str, str], title: str) -> Row | None:
    head, figure, factor = next(f for f in _OSU_FIGURES if f[0] in cells)
    bytes_, value = _size(size), _positive(cells[head])
    if bytes_ is None or value is None:
        return None
    low = high = None
    if head == "Avg Latency(us)":
        low, high = (_positive(cells.get(f"{name} Latency(us)")) for name in ("Min", "Max"))
    told = _summary(
        value * factor,
        low=None if low is None else low * factor,
        high=None if high is None else high * factor,
    )
    return _row(bytes_, title, **{figure: told})


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
    return _body(rows, ToolVersion(name="perftest"))


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


def _body(rows: Sequence[Row], tool: ToolVersion, *, wrong: bool = False) -> Body:
    if len(rows) > MOST_ROWS:
        raise SettingsError("text", f"has {len(rows)} rows, more than {MOST_ROWS}")
    best = [row["bandwidth"]["median"] for row in rows if row["bandwidth"]]
    least = [row["latency_s"]["median"] for row in rows if row["latency_s"]]
    summary: dict[str, Json] = {
        "bandwidth": max(best, default=None),
        "latency_s": min(least, default=None),
    }
    because = ("data were wrong",) if wrong else ()
    return Body(rows=rows, summary=summary, tool=tool, invalid_because=because)


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
