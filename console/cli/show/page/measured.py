"""Sections of a page about measurements: the figures of each type, as the console shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from console.cli.show.page.bars import Bar, Cell, bars, heat_map
from console.cli.show.page.curves import Axis, Curve, Point, curves
from console.cli.show.page.html import clock, escaped, listed, small, table
from console.cli.show.page.values import (
    NONE,
    Document,
    change,
    count,
    ends,
    mid,
    num,
    per_second,
    rows,
    seconds,
    share,
    size,
    text,
)
from measure.statistics import median

MOST_ROWS = 60
_SIZES = Axis("Size", size, log=True)


def measured(found: Sequence[Document]) -> str:
    """Return a section for each measurement that has a result."""
    return "".join(_section(m) for m in found if isinstance(m.get("result"), Mapping))


def _section(m: Document) -> str:
    result: Document = m["result"]
    kind = str(m.get("type", ""))
    title = f"Measurement {m.get('id', '')}: {kind}"
    finished = num(m.get("finished_at"))
    told = [
        text(result.get("source")),
        f"on {len(result.get('endpoints') or [])} endpoints",
        clock(finished) if finished is not None else "",
    ]
    shown = _TYPES.get(kind, _unknown)(result)
    return f"<h2>{escaped(title)}</h2>{small(', '.join(filter(None, told)))}{_validity(m)}{shown}"


def _validity(m: Document) -> str:
    if m.get("valid") is not False:
        return ""
    because = m.get("invalid_because")
    reasons = [text(one) for one in because] if isinstance(because, list) else []
    return f"<p><strong>Not valid: do not rely on these figures.</strong></p>{listed(reasons)}"


def _links(result: Document) -> str:
    found = rows(result)
    largest = max((s for r in found if (s := num(r.get("size"))) is not None), default=None)
    names = [text(name) for name in result.get("endpoints") or []]
    place = {name: i for i, name in enumerate(names)}
    cells = {}
    for r in found:
        pair = (place.get(text(r.get("from"))), place.get(text(r.get("to"))))
        if num(r.get("size")) != largest or pair[0] is None or pair[1] is None:
            continue
        value, group = mid(r.get("bandwidth")), num(r.get("group"))
        said = per_second(value) if value is not None else f"not measured {text(r.get('reason'))}"
        cells[pair[0], pair[1]] = Cell(
            value,
            int(group) if group is not None and 0 < group < 100 else None,
            f"{names[pair[0]]} to {names[pair[1]]}: {said}",
        )
    return "".join(
        (
            heat_map(
                f"Bandwidth at {size(largest)}, from (left) to (top)", names, cells, per_second
            )
            if largest is not None
            else "",
            curves(
                "Bandwidth by group",
                _by_group(result, found),
                _SIZES,
                Axis("Bandwidth", per_second),
            ),
            "<h3>What stands out</h3>",
            table(
                ("Object", "Kind", "Of its class", "Evidence"),
                [
                    (
                        text(a.get("object")),
                        text(a.get("kind")),
                        share(num(a.get("ratio"))),
                        text(a.get("evidence")),
                    )
                    for a in rows(result, "anomalies")
                ],
                MOST_ROWS,
            ),
            "<h3>Fits: time = α + size / β</h3>",
            table(
                ("Class", "α", "β", "n½", "Residual"),
                [
                    (
                        text(f.get("class")),
                        seconds(num(f.get("alpha_s"))),
                        per_second(num(f.get("beta"))),
                        size(num(f.get("n_half"))),
                        share(num(f.get("residual"))),
                    )
                    for f in rows(result, "fits")
                ],
                MOST_ROWS,
            ),
        )
    )


def _by_group(result: Document, found: Sequence[Document]) -> list[Curve]:
    """Return a line per group; groups of different sizes are the same if their classes are."""
    named = {
        (num(g.get("size")), num(g.get("id"))): text(g.get("classes"))
        for g in rows(result, "groups")
    }
    lines: dict[str, dict[float, list[Document]]] = {}
    for r in found:
        at = num(r.get("size"))
        if at is not None and mid(r.get("bandwidth")) is not None:
            name = named.get((at, num(r.get("group")))) or text(r.get("class")) or "all pairs"
            lines.setdefault(name, {}).setdefault(at, []).append(r)
    return [
        Curve(name, [_point(at, same) for at, same in sizes.items()])
        for name, sizes in sorted(lines.items())
    ]


def _point(at: float, same: Sequence[Document]) -> Point:
    def middle(values: list[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return median(known) if known else None

    lows, highs = zip(*(ends(r.get("bandwidth")) for r in same), strict=True)
    y = middle([mid(r.get("bandwidth")) for r in same])
    return Point(at, y if y is not None else 0.0, middle(list(lows)), middle(list(highs)))


def _collectives(result: Document) -> str:
    found = rows(result)

    def half(r: Document, field: str) -> float | None:
        halves = [r.get(way) for way in ("out_of_place", "in_place")]
        values = [num(one.get(field)) for one in halves if isinstance(one, Mapping)]
        return next((v for v in values if v is not None), None)

    def run(r: Document) -> str:
        return (
            f"{text(r.get('placement'))}, {text(r.get('operation'))}, {text(r.get('ranks'))} ranks"
        )

    return curves(
        "Bus bandwidth",
        _grouped(found, run, lambda r: num(r.get("size")), lambda r: half(r, "bus_bw")),
        _SIZES,
        Axis("busbw", per_second),
    ) + table(
        ("Run", "Size", "Time", "algbw", "busbw", "#wrong", "Of its slowest link", "Note"),
        [
            (
                run(r),
                size(num(r.get("size"))),
                seconds(half(r, "time_s")),
                per_second(half(r, "alg_bw")),
                per_second(half(r, "bus_bw")),
                "N/A" if (wrong := half(r, "nwrong")) is None else count(wrong),
                share(num(r.get("link_share"))),
                text(r.get("reason")) or text(r.get("note")),
            )
            for r in found
        ],
        MOST_ROWS,
    )


def _scaling(result: Document) -> str:
    found = rows(result)
    intensity = Axis("Activations per parameter", count, log=True)

    def ranks(r: Document) -> str:
        return f"{text(r.get('ranks'))} ranks"

    def at(r: Document) -> float | None:
        return num(r.get("intensity"))

    steps = _grouped(found, ranks, at, lambda r: mid(r.get("step_s")))
    predicted = [
        Curve(f"{line.name}, predicted", line.points, predicted=True)
        for line in _grouped(found, ranks, at, lambda r: mid(r.get("predicted_step_s")))
    ]
    gains = _grouped(
        found,
        lambda r: f"ResNet/{text(r.get('x'))}, batch {text(r.get('batch'))}",
        lambda r: num(r.get("ranks")),
        lambda r: num(r.get("efficiency")),
    )
    return "".join(
        (
            curves(
                "Step against intensity",
                [*steps, *predicted],
                intensity,
                Axis("Step", seconds, log=True),
            ),
            curves("Efficiency of strong scaling", gains, Axis("Ranks", count), Axis("", share)),
            table(
                ("x", "Batch", "Ranks", "Intensity", "Step", "Exposed", "Efficiency", "Error"),
                [
                    (
                        text(r.get("x")),
                        text(r.get("batch")),
                        text(r.get("ranks")),
                        count(at(r)),
                        seconds(mid(r.get("step_s"))),
                        seconds(mid(r.get("exposed_s"))),
                        share(num(r.get("efficiency"))),
                        share(num(r.get("error"))),
                    )
                    for r in found
                ],
                MOST_ROWS,
            ),
        )
    )


def _storage(result: Document) -> str:
    found = rows(result)

    def limits(r: Document) -> str:
        disk = num(r.get("io_limit_bps"))
        told = [text(r.get("rw")), f"at most {per_second(disk)}" if disk is not None else ""]
        return ", ".join(filter(None, told))

    def by_size(r: Document) -> str:
        return f"{size(num(r.get('io_bytes')))}, {limits(r)}"

    def by_workers(r: Document) -> str:
        return f"{text(r.get('workers'))} workers, {limits(r)}"

    def workers(r: Document) -> float | None:
        return num(r.get("workers"))

    def at(r: Document) -> float | None:
        return num(r.get("io_bytes"))

    def p99(r: Document) -> float | None:
        latency = r.get("latency_s")
        return num(latency.get("p99")) if isinstance(latency, Mapping) else None

    def rate(r: Document) -> float | None:
        return mid(r.get("bytes_per_s"))

    across = Axis("Workers", count, log=True)
    return "".join(
        (
            curves(
                "Throughput against workers",
                _grouped(found, by_size, workers, rate),
                across,
                Axis("", per_second),
            ),
            curves(
                "CPU cores against workers",
                _grouped(found, by_size, workers, lambda r: mid(r.get("cpu_cores"))),
                across,
                Axis("", count),
            ),
            curves(
                "Throughput against size",
                _grouped(found, by_workers, at, rate),
                _SIZES,
                Axis("", per_second, log=True),
            ),
            curves(
                "99th percentile against size",
                _grouped(found, by_workers, at, p99),
                _SIZES,
                Axis("", seconds, log=True),
            ),
        )
    )


def _input(result: Document) -> str:
    parts = []
    for r in rows(result)[:MOST_ROWS]:
        disk, memory = num(r.get("io_limit_bps")), num(r.get("memory_bytes"))
        under = [
            f"disk at most {per_second(disk)}" if disk is not None else "",
            f"{size(memory)} of memory" if memory is not None else "",
        ]
        figures = [
            Bar(
                name=name,
                value=(value := mid(r.get(field))),
                text="not measured" if value is None else f"{count(value)} samples/s",
                colour=colour,
            )
            for colour, (name, field) in enumerate(_LOADS.items())
        ]
        parts.append(bars(", ".join(filter(None, under)) or "no limits", figures))
        verdict = f"Limit: {text(r.get('limit')) or 'unknown'}. {text(r.get('remedy'))}"
        parts.append(f"<p>{escaped(verdict)}</p>")
    return "".join(parts)


_LOADS = {
    "input alone": "ceiling_samples_s",
    "model alone": "model_samples_s",
    "together": "together_samples_s",
}


def _compare(result: Document) -> str:
    found = rows(result)
    summary: Mapping[str, Any] = result.get("summary") or {}
    base = next((r for r in found if r.get("placement") == "local"), found[0] if found else {})
    first = _step(base)
    local = first if first is not None else mid(base.get("predicted_step_s"))

    def relative(value: float | None) -> float | None:
        return None if value is None or not local else (value - local) / local

    drawn = []
    for r in found:
        low, high = (relative(end) for end in ends(r.get("predicted_step_s")))
        mark = (low, high) if low is not None and high is not None else None
        own = relative(_step(r))
        middle = None if mark is None else sum(mark) / 2
        predicted = "" if mark is None else f"predicted {change(mark[0])} to {change(mark[1])}"
        drawn.append(
            Bar(
                name=text(r.get("placement")),
                value=own if own is not None else middle,
                text=f"{'not measured' if own is None else change(own)}; {predicted}".rstrip("; "),
                mark=mark,
                colour=7 if own is None else 0,
            )
        )
    chosen = text(summary.get("recommended")) or "open"
    because = text(summary.get("because"))
    advice = f"<p><strong>Recommended: {escaped(chosen)}</strong> {escaped(because)}</p>"
    return bars("Change of training time by placement", drawn) + advice


def _step(r: Document) -> float | None:
    figures = (mid(r.get(name)) for name in ("measured_step_s", "step_s", "measured_s"))
    return next((value for value in figures if value is not None), None)


def _unknown(result: Document) -> str:
    summary = result.get("summary")
    if not isinstance(summary, Mapping):
        return ""
    return table(("", ""), [(name, text(value) or NONE) for name, value in summary.items()], 60)


def _grouped(
    found: Sequence[Document],
    name: Callable[[Document], str],
    x: Callable[[Document], float | None],
    y: Callable[[Document], float | None],
) -> list[Curve]:
    lines: dict[str, list[Point]] = {}
    for r in found:
        at, value = x(r), y(r)
        if at is not None and value is not None:
            lines.setdefault(name(r), []).append(Point(at, value))
    return [Curve(label, points) for label, points in lines.items()]


_TYPES: Mapping[str, Callable[[Document], str]] = {
    "links": _links,
    "collectives": _collectives,
    "scaling": _scaling,
    "storage": _storage,
    "input": _input,
    "compare": _compare,
}
