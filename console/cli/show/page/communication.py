"""Sections of a page about one job: what it communicates, what was predicted, what limits it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from console.cli.show.page.bars import Bar, bars
from console.cli.show.page.html import clock, escaped, listed, small, table
from console.cli.show.page.values import (
    NONE,
    Document,
    count,
    interval,
    num,
    per_second,
    rows,
    seconds,
    share,
    size,
    text,
)

MOST_ROWS = 60
_DEFINITIONS = {
    "timeline": "|communication ∩ compute| / |communication| on a rank's time line",
    "pure": "max(0, 1 − (overall − compute) / pure communication), as OSU's benchmarks define it",
    "measured": "(compute + communication − step) / compute",
    "wire": "bursts of the network interface taken for communication, all of it exposed",
}


def communication(comms: Document) -> str:
    """Return the section of a job's communication."""
    found = rows(comms)
    return "".join(
        (
            "<h2>Communication</h2>",
            _overlap(comms),
            _operations(found),
            _charts(found),
            table(
                ("Operation", "Size", "Calls", "Mean", "Least", "Most", "busbw", "Source"),
                [
                    (
                        text(r.get("op")),
                        _size(r),
                        _calls(r),
                        seconds(num(r.get("avg_s"))),
                        seconds(num(r.get("min_s"))),
                        seconds(num(r.get("max_s"))),
                        per_second(num(r.get("busbw"))),
                        f"{text(r.get('source'))}, {text(r.get('timing'))}",
                    )
                    for r in found
                ],
                MOST_ROWS,
            ),
            _recorders(rows(comms, "ranks")),
            listed([text(note) for note in comms.get("notes") or []]),
        )
    )


def _overlap(comms: Document) -> str:
    block = comms.get("overlap")
    if not isinstance(block, Mapping):
        return ""
    step, compute, comm, exposed = (
        num(block.get(name)) or 0.0 for name in ("step_s", "compute_s", "comm_s", "exposed_s")
    )
    hidden = max(0.0, comm - exposed)
    parts = (
        ("compute alone", max(0.0, compute - hidden)),
        ("hidden communication", hidden),
        ("exposed communication", exposed),
    )
    definition = text(block.get("definition"))
    overlap = share(num(block.get("overlap")))
    return bars(
        f"A step of {seconds(step)}, slowest rank",
        [
            Bar(name=name, value=value, text=f"{seconds(value)}, {share(value / step)}", colour=n)
            for n, (name, value) in enumerate(parts)
            if step > 0
        ],
    ) + small(
        f"Overlap {overlap}: {_DEFINITIONS.get(definition, definition)}. "
        f"{count(num(block.get('steps')))} steps."
    )


def _operations(found: Sequence[Document]) -> str:
    sums: dict[str, list[float]] = {}
    for r in found:
        one = sums.setdefault(text(r.get("op")), [0.0, 0.0, 0.0])
        for i, name in enumerate(("share", "calls", "total_s")):
            one[i] += num(r.get(name)) or 0.0
    return bars(
        "Operations: time in all",
        [
            Bar(name=op, value=total, text=f"{seconds(total)}, {share(part)} of the step")
            for op, (part, _, total) in sorted(sums.items(), key=lambda item: -item[1][2])
        ],
    )


def _charts(found: Sequence[Document]) -> str:
    """Return DeepIntrospect's two charts: calls and latency by size."""
    calls: dict[str, float] = {}
    latency: dict[str, list[tuple[float, float, float, float]]] = {}
    for r in sorted(found, key=lambda r: num(r.get("bytes")) or 0.0):
        n, average = num(r.get("calls")) or 0.0, num(r.get("avg_s"))
        calls[_size(r)] = calls.get(_size(r), 0.0) + n
        low, high = num(r.get("min_s")), num(r.get("max_s"))
        if average is not None and low is not None and high is not None:
            latency.setdefault(_size(r), []).append((n, average, low, high))
    spans = []
    for name, one in latency.items():
        total = sum(n for n, *_ in one)
        mean = sum(n * average for n, average, *_ in one) / total if total else one[0][1]
        low, high = min(v[2] for v in one), max(v[3] for v in one)
        said = f"{seconds(mean)} ({seconds(low)} to {seconds(high)})"
        spans.append(Bar(name=name, value=mean, low=low, high=high, text=said, colour=1))
    return bars(
        "Calls by size", [Bar(name=k, value=v, text=count(v)) for k, v in calls.items()]
    ) + bars("Latency by size: mean, least to most", spans)


def _recorders(ranks: Sequence[Document]) -> str:
    bad = [r for r in ranks if r.get("recorder") != "recording"]
    if not bad:
        return small(f"All {len(ranks)} ranks record.") if ranks else ""
    told = [
        f"rank {text(r.get('rank'))} ({text(r.get('endpoint'))}): {text(r.get('recorder'))} "
        f"{text(r.get('reason'))}"
        for r in bad
    ]
    return "<h3>Ranks that do not record</h3>" + listed(told)


def _size(r: Document) -> str:
    value = num(r.get("bytes"))
    return size(value) if value else "not told"


def _calls(r: Document) -> str:
    return f"{'' if r.get('exact') is not False else '≈ '}{count(num(r.get('calls')))}"


def predicted(found: Sequence[Document]) -> str:
    """Return the section of a job's predictions, newest first; nothing without any."""
    if not found:
        return ""
    made = sorted(found, key=lambda p: -(num(p.get("made_at")) or 0.0))
    return "<h2>Predictions</h2>" + table(
        ("Made", "From", "State", "Predicted", "Measured", "Error", "Rests on"),
        [
            (
                clock(num(p.get("made_at")) or 0.0),
                text(p.get("cause")),
                text(p.get("state")),
                interval(p.get("step_s")),
                seconds(num(p.get("measured_s"))),
                share(num(p.get("error"))),
                text(p.get("basis")) or NONE,
            )
            for p in made
        ],
        MOST_ROWS,
    )


def advised(advice: Document) -> str:
    """Return the section of what limits a job and what helps; nothing if nothing is known."""
    findings = rows(advice, "findings")
    unknown = [text(one) for one in advice.get("unknown") or []]
    limit = text(advice.get("limit"))
    if not findings and not unknown and not limit:
        return ""
    parts = ["<h2>Advice</h2>", f"<p>Limited by: {escaped(limit)}.</p>" if limit else ""]
    for one in findings[:MOST_ROWS]:
        gain = interval(one.get("gain"), share)
        saves = "" if gain == NONE else f" It saves {gain} of the step."
        parts += [
            f"<p><strong>{escaped(text(one.get('text')))}</strong>{escaped(saves)} "
            f"{escaped(text(one.get('remedy')))}</p>",
            listed([text(line) for line in one.get("evidence") or []]),
            f"<pre>{escaped(text(one.get('command')))}</pre>" if one.get("command") else "",
        ]
    return "".join(parts) + (f"<h3>Not known</h3>{listed(unknown)}" if unknown else "")
