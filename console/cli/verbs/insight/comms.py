"""``comms``: what a job communicates, how long it takes, and what computation covers of it."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from base.figures import figure
from console.cli.ask.options import JobArgument, WatchOption, WideOutput, connect
from console.cli.errors import CliError, usage
from console.cli.show import output as out
from console.cli.show.output import OutputFormat
from console.cli.show.text import NONE, age, duration_s, percent, size

Document = dict[str, Any]
_EVERY_S = 10.0
_LONGEST_S = 3600.0
_ENDED = frozenset({"completed", "failed", "cancelled"})
_CLEAR = "\x1b[H\x1b[2J"
_MOST_RANKS = 16


def comms(
    ctx: typer.Context,
    job: JobArgument,
    *,
    rank: Annotated[
        int | None, typer.Option(min=0, help="One rank; all together if absent.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only the last 5m (at most 1h); all if absent."),
    ] = None,
    watch: WatchOption = False,
    output: WideOutput = OutputFormat.TABLE,
) -> None:
    """Show what a job communicates: operations by size, overlap, who waits for whom.

    Times are of the job's slowest rank. With -w and -o json, one document on one line each.
    """
    if watch and output is OutputFormat.YAML:
        raise usage("-w prints a table or JSON lines", "leave -o yaml out")
    query: Document = {}
    if rank is not None:
        query["rank"] = rank
    if since is not None:
        query["since_s"] = seconds = duration_s(since)
        if not 0 < seconds <= _LONGEST_S:
            raise usage(f"--since {since}: only the last hour is kept", "e.g. --since 5m")
    name = job.removeprefix("job/")
    with connect(ctx) as client:
        while True:
            view = client.get(f"/jobs/{client.part(name)}/comms", **query)
            _print(view, output, watch=watch)
            if not watch or view["state"] in _ENDED:
                break
            time.sleep(_EVERY_S)
    if not view["rows"] and not output.structured:
        raise _nothing(view)


def _print(view: Document, output: OutputFormat, *, watch: bool) -> None:
    if output.structured and watch:
        out.json_line(view)
    elif output.structured:
        out.document(view, output)
    else:
        if watch and sys.stdout.isatty():
            sys.stdout.write(_CLEAR)
        _show(view, wide=output is OutputFormat.WIDE)


def _nothing(view: Document) -> CliError:
    """Print why no figures exist, and what to do."""
    job = view["job"]
    if view["record"] == "off":
        text, hint = "its communication is not recorded", "submit it with --record counts"
    elif view["state"] in _ENDED:
        text = "it has ended, and nothing is known of its communication"
        hint = "agents keep a rank's figures for 15 minutes after its end, the controller 200 jobs'"
    elif view["state"] == "pending":
        text, hint = "it has not started", f"lightloom describe job {job}"
    else:
        reasons = {rank["reason"] for rank in view["ranks"] if rank["reason"]}
        text = "nothing has been recorded yet" + "".join(f"; {r}" for r in sorted(reasons)[:2])
        hint = "figures come every ten seconds, those of the wire every thirty"
    return CliError("unmet", f"job {job}: {text}", object=f"job/{job}", hint=hint)


def _show(view: Document, *, wide: bool) -> None:
    if view["rows"]:
        heads = ["OPERATION", "SIZE", "CALLS", "AVG", "P50", "MAX", "TOTAL", "SHARE", "BUS", "SKEW"]
        heads += ["TRANSFER", "LAST", "TYPE", "TAG", "SOURCE", "TIMING"] if wide else []
        out.show_table(heads, [_row(row, wide=wide) for row in view["rows"]])
    parts = [] if view["overlap"] is None else _overlap(view["overlap"])
    if view["efficiency"] is not None:
        parts.append(("efficiency", f"{percent(view['efficiency'])} ({view['efficiency_of']})"))
    if parts:
        out.line("")
        out.show_table(("", ""), parts, head=False)
    out.line("")
    ranks = view["ranks"]
    out.show_table(
        ("RANK", "ENDPOINT", "RECORDER", "SOURCE", "AGE", "DAMAGED", "REASON"),
        [
            (
                rank["rank"],
                rank["endpoint"] or NONE,
                rank["recorder"],
                rank["source"] or NONE,
                age(rank["age_s"]),
                rank["damaged_rows"] or NONE,
                rank["reason"] or NONE,
            )
            for rank in (ranks if wide else ranks[:_MOST_RANKS])
        ],
    )
    if len(ranks) > _MOST_RANKS and not wide:
        out.message(f"{len(ranks) - _MOST_RANKS} more ranks: -o wide")
    for note in view["notes"]:
        out.message(f"note: {note}")


def _row(row: Document, *, wide: bool) -> list[object]:
    cells: list[object] = [
        row["op"],
        size(row["bytes"]) if row["bytes"] else NONE,
        row["calls"] if row["source"] != "wire" else f"~{row['calls']}",
        _time(row["avg_s"]),
        _time(row["p50_s"]),
        _time(row["max_s"]),
        _time(row["total_s"]),
        percent(row["share"]),
        NONE if row["busbw"] is None else f"{figure(row['busbw'] / 1e9)} GB/s",
        _time(row["skew_s"]),
    ]
    if wide:
        cells += [
            _time(row["transfer_s"]),
            NONE
            if row["last_rank"] is None
            else f"{row['last_rank']}: {percent(row['last_share'])}",
            row["dtype"] or NONE,
            row["tag"] or NONE,
            row["source"],
            row["timing"] if row["exact"] else f"{row['timing']}, sampled",
        ]
    return cells


def _overlap(overlap: Document) -> list[tuple[object, object]]:
    step_s = overlap["step_s"]

    def of_step(seconds: float) -> str:
        return f"{_time(seconds)} ({percent(seconds / step_s if step_s else None)} of the step)"

    calls = overlap["calls_per_step"]
    moved = overlap["bytes_per_step"]
    return [
        ("step", f"{_time(step_s)} (median of {overlap['steps']})"),
        ("computation", of_step(overlap["compute_s"])),
        ("communication", of_step(overlap["comm_s"])),
        ("exposed", of_step(overlap["exposed_s"])),
        ("overlap", f"{percent(overlap['overlap'])} (definition: {overlap['definition']})"),
        ("per step", f"{NONE if calls is None else figure(calls)} calls, {size(moved)}"),
    ]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{figure(seconds * factor)} {unit}"
    return f"{figure(seconds * 1e6)} us"
