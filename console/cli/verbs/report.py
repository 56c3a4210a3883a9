"""``report``: one job's record as a self-contained page with plots, events and last output."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from base.figures import figure
from console.cli.ask.complete import names
from console.cli.ask.options import connect
from console.cli.errors import CliError
from console.cli.show import output as out
from console.cli.show.page.communication import advised, communication, predicted
from console.cli.show.page.html import clock, escaped, listed, table
from console.cli.show.page.measured import measured
from console.cli.show.page.survival import checkpointed, recovered
from console.cli.show.plot import Line, Marker, plot
from console.cli.show.text import NONE, age, rate, spread
from readings.catalogue import of
from readings.reading import Object

if TYPE_CHECKING:
    from console.cli.ask.client import Client

Document = dict[str, Any]


@dataclass(slots=True, frozen=True, kw_only=True)
class Studied:
    """What is known of a job beyond its samples."""

    comms: Document | None = None
    predictions: Sequence[Document] = ()
    advice: Document | None = None
    checkpoints: Document | None = None
    recoveries: Document | None = None
    measurements: Sequence[Document] = ()
    """With their results: the latest valid one of each type."""
    unread: Sequence[str] = field(default_factory=tuple)
    """What could not be read, and why."""


_MARGIN_S = 10.0
_LONGEST_S = 31 * 86400.0
_EVENTS = 1000
_LINES = 20
"""Of each rank's output, the last."""

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;
color:#1b1f24;background:#fff}
h1{font-size:1.6rem;margin-bottom:.2rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:.25rem .7rem .25rem 0;border-bottom:1px solid #d8dee4}
pre{overflow-x:auto;font-size:.85rem}
.small{color:#57606a;font-size:.85rem}svg{width:100%;height:auto}
.legend span{display:inline-block;margin-right:1rem}.legend i{display:inline-block;width:1.4rem;
height:3px;vertical-align:middle;margin-right:.3rem}
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}th,td{border-color:#30363d}
.small{color:#8b949e}}
@media(max-width:40rem){table{display:block;overflow-x:auto}}
"""


def report(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(help="A job: red.", autocompletion=names("jobs"))],
    *,
    file: Annotated[
        Path | None, typer.Option("-o", "--out", help="File of the page; JOB.html if absent.")
    ] = None,
) -> None:
    """Write a job's record as one page: placement, curves, events, output."""
    name = job.removeprefix("job/")
    target = file or Path(f"{name}.html")
    with connect(ctx) as client:
        record = client.get(f"/jobs/{client.part(name)}")
        back_s = min(_LONGEST_S, max(60.0, time.time() - record["submitted_at"] + _MARGIN_S))
        series = client.get("/series", since_s=back_s, job=name)
        found = _events(client)
        moves = client.whole("/transactions")["items"]
        output = _last_output(client, name)
        studied = _studied(client, name, keeps=record["checkpoint"] is not None)
    about = f"job/{name}"
    own = [e for e in found if e["object"] == about and e["time"] >= record["submitted_at"] - 1]
    touched = [t for t in moves if name in t["jobs"]]
    try:
        target.write_text(
            page(record, series, own, touched, output, studied=studied), encoding="utf-8"
        )
    except OSError as error:
        raise CliError(
            "failed", f"{target} cannot be written: {error.strerror}", object=str(target)
        ) from None
    out.line(str(target))


def _events(client: Client) -> list[Document]:
    """Return all stored events, oldest first."""
    found: list[Document] = client.get("/events", limit=_EVENTS)["items"]
    if len(found) < _EVENTS:
        return found
    found = []  # those are only the latest: read all, page by page
    last = 1
    while items := client.get("/events", since=last, limit=_EVENTS)["items"]:
        found += items
        last = items[-1]["id"]
    return found


def _last_output(client: Client, job: str) -> dict[int, list[str]]:
    """Return the last lines of each rank that has any."""
    found: dict[int, list[str]] = {}
    try:
        for line in client.lines(f"/jobs/{client.part(job)}/logs", follow=False, tail=_LINES):
            found.setdefault(line["rank"], []).append(line["text"])
    except CliError as error:
        if error.code != "unavailable":  # a server does not answer, or the job never ran
            raise
    return dict(sorted(found.items()))


def _studied(client: Client, job: str, *, keeps: bool) -> Studied:
    """Read what is known beyond samples; a part that cannot be read is named in the page.

    ``keeps`` says that the job keeps checkpoints.
    """
    unread: list[str] = []

    def part(what: str, read: Callable[[], Any], absent: Any) -> Any:
        try:
            return read()
        except CliError as error:
            if error.code not in ("not_found", "forbidden"):
                unread.append(f"{what}: {error.message}")
            return absent

    name = client.part(job)
    return Studied(
        comms=part("communication", lambda: client.get(f"/jobs/{name}/comms"), None),
        predictions=[
            p
            for p in part("predictions", lambda: client.whole("/predictions")["items"], [])
            if p.get("job") == job
        ],
        advice=part("advice", lambda: client.get("/advice", job=job), None),
        checkpoints=part("checkpoints", lambda: client.get(f"/jobs/{name}/checkpoints"), None)
        if keeps
        else None,
        recoveries=part("recoveries", lambda: client.get(f"/jobs/{name}/recoveries"), None),
        measurements=part("measurements", lambda: _measurements(client), []),
        unread=tuple(unread),
    )


def _measurements(client: Client) -> list[Document]:
    """Return the latest valid measurement of each type, with its result."""
    latest: dict[str, Document] = {}
    for m in client.whole("/measurements")["items"]:
        known = latest.get(m["type"])
        if m.get("valid") and (known is None or m["submitted_at"] > known["submitted_at"]):
            latest[m["type"]] = m
    return [client.get(f"/measurements/{client.part(m['id'])}") for m in latest.values()]


def page(
    job: Document,
    series: Document,
    events: Sequence[Document],
    moves: Sequence[Document],
    output: Mapping[int, Sequence[str]],
    *,
    studied: Studied | None = None,
) -> str:
    """Return the page. All text from outside is escaped; the page fetches nothing."""
    studied = studied or Studied()
    title = f"Job {job['name']}"
    markers = [Marker(t["started_at"], _words(t)) for t in moves]
    plots = "".join(_plots(series, markers)) or '<p class="small">There are no samples.</p>'
    parts = [
        f"<h1>{escaped(title)}</h1>",
        f'<p class="small">{escaped(_headline(job))}</p>',
        _facts(job),
        _failure(job),
        "<h2>Throughput and utilisation</h2>",
        plots,
        "<h2>Ranks</h2>",
        table(
            ("Rank", "Endpoint", "Home", "Server", "State", "Exit", "Dark time"),
            [
                (
                    r["rank"],
                    r["endpoint"],
                    r["home"] or "dark",
                    r["server"],
                    r["state"],
                    NONE if r["exit_code"] is None else r["exit_code"],
                    f"{r['dark_time_s']:.3f} s",
                )
                for r in job["ranks"]
            ],
        ),
        "<h2>Moves of light</h2>",
        table(
            ("Time", "Transaction", "Moves", "Dark time", "Result"),
            [
                (
                    clock(t["started_at"]),
                    t["id"],
                    ", ".join(f"{m['endpoint']}: {m['from']} to {m['to']}" for m in t["moves"]),
                    f"{max(t['dark_time_s'].values(), default=0.0):.3f} s",
                    f"{t['state']}: {t['result'] or t['error']}",
                )
                for t in moves
            ],
        ),
        "" if studied.recoveries is None else recovered(studied.recoveries),
        "" if studied.checkpoints is None else checkpointed(studied.checkpoints),
        "" if studied.advice is None else advised(studied.advice),
        "" if studied.comms is None else communication(studied.comms),
        predicted(studied.predictions),
        "<h2>Timeline</h2>",
        table(
            ("Time", "Severity", "Reason", "Message"),
            [(clock(e["time"]), e["severity"], e["reason"], e["message"]) for e in events],
        ),
        "<h2>Last output</h2>",
        *(
            f"<h3>Rank {rank}</h3><pre>{escaped(chr(10).join(lines))}</pre>"
            for rank, lines in output.items()
        ),
        "" if output else '<p class="small">None.</p>',
        measured(studied.measurements),
        f"<h2>Not read</h2>{listed(studied.unread)}" if studied.unread else "",
        f'<p class="small">Written by lightloom at {escaped(clock(time.time()))}. Samples of '
        f"{figure(series['interval_s'], 6)} s each.</p>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escaped(title)}</title><style>{_STYLE}</style></head><body>"
        + "\n".join(parts)
        + "</body></html>\n"
    )


def _plots(series: Document, markers: Sequence[Marker]) -> list[str]:
    times = series["times"]
    found = []
    for title, key, scale, unit in (
        ("Received", "rx_bps", 1.0, "bit/s"),
        ("Sent", "tx_bps", 1.0, "bit/s"),
        ("Utilisation", "utilisation", 100.0, "%"),
        *(
            (f"{reading.label.capitalize()} of the GPUs", reading.name, 1.0, reading.unit)
            for reading in of(Object.GPU)
            if reading.history
        ),
    ):
        lines = [
            Line(
                f"rank {line['rank']} ({line['endpoint']})",
                [math.nan if v is None else v * scale for v in line[key]],
            )
            for line in series["containers"]
            if line.get(key) is not None
        ]
        if times and lines:
            found.append(plot(title, times, lines, markers, unit=unit))
    return found


def _headline(job: Document) -> str:
    end = job["finished_at"] or time.time()
    ran = age(end - job["started_at"]) if job["started_at"] else "not started"
    return f"{job['state']}, {job['count']} endpoints, {spread(job['spread'])}, ran {ran}"


def _facts(job: Document) -> str:
    rows = [
        ("Project", job["project"]),
        ("Image", job["image"]),
        ("Image digest", job.get("image_digest") or "not known"),
        ("Command", " ".join(job["command"]) or NONE),
        ("Locality, policy", f"{job['locality']}, {job['policy']}"),
        ("Span", f"{job['span']}, excess {job['excess_span']}, {job['ring_crossings']} crossings"),
        ("Restarts", job["restarts"]),
        ("Now", f"{rate(job['rx_bps'])} received, {rate(job['tx_bps'])} sent"),
        ("Reason", job["reason"] or NONE),
    ]
    return table(("", ""), rows)


def _failure(job: Document) -> str:
    """Return why the job failed; empty if it did not."""
    failure = job.get("failure")
    if failure is None:
        return ""
    rows = [
        ("First cause", failure["cause"]),
        ("Endpoint", failure["endpoint"]),
        ("Other ranks", failure["others"] or NONE),
        *([("Not read", failure["unread"])] if failure["unread"] else []),
    ]
    lines = "\n".join(failure["lines"] or ())
    said = (
        f"<h3>Last lines of rank {failure['rank']}</h3><pre>{escaped(lines)}</pre>" if lines else ""
    )
    return f"<h2>Failure</h2>{table(('', ''), rows)}{said}"


def _words(transaction: Document) -> str:
    return f"{transaction['cause']} {transaction['id']}: {transaction['state']}"
