"""``recoveries``: what became of jobs that lost ranks, and what failures cost."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from base.figures import figure
from console.cli.ask.asking import print_answer
from console.cli.ask.complete import names
from console.cli.ask.options import OutputOption, connect
from console.cli.show import output as out
from console.cli.show.output import OutputFormat
from console.cli.show.recovery import OWN, costs, headline, lines, steps
from console.cli.show.text import NONE, instant, moment_s

Document = dict[str, Any]


def recoveries(
    ctx: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(help="One job; the whole site if absent.", autocompletion=names("jobs")),
    ] = None,
    *,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="From then on: 7d (ago), or 2026-01-31T12:00. [default: all; the site: 7d]",
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what became of a job that lost ranks: every recovery's phases on a time line.

    Without a job: what failures cost the site, by cause. ETTR is the share of the time in which
    jobs made steps that counted.
    """
    now = time.time()
    with connect(ctx) as client:
        if job is None:
            view = client.get("/recoveries", since=moment_s(since or "7d", now))
        else:
            view = client.get(f"/jobs/{client.part(job.removeprefix('job/'))}/recoveries")
            first = 0.0 if since is None else moment_s(since, now)
            view["recoveries"] = [r for r in view["recoveries"] if r["failed_at"] >= first]
    print_answer(view, output, _site if job is None else _job)


def _job(view: Document) -> None:
    if not view["recoveries"]:
        out.message(f"job {view['job']} has lost no rank")
    for recovery in view["recoveries"]:
        out.line(f"{recovery['number']}. {instant(recovery['failed_at'])} {headline(recovery)}")
        if recovery["why"]:
            out.line(f"  {recovery['why']}")
        out.lines(lines(recovery))
        out.line(f"  {_sums(recovery)}")
        out.line("")
    if view["recoveries"]:
        out.line(f"█ {OWN}, ░ the program's own import and first step")
    out.line(f"ETTR {_ratio(view['ettr'])}")
    _lost(view["gpu_hours_lost"])


def _site(view: Document) -> None:
    out.show_table(
        ("", ""),
        [
            ("since", instant(view["since"])),
            ("ETTR", _ratio(view["ettr"])),
            ("GPU-hours held", figure(view["gpu_hours"])),
        ],
        head=False,
    )
    causes = {**dict.fromkeys(view["failures"], 0.0), **view["gpu_hours_lost"]}
    if not causes:
        out.message("no job was interrupted since then")
        return
    out.line("")
    out.show_table(
        ("CAUSE", "TIMES", "GPU-HOURS-LOST"),
        [(cause, view["failures"].get(cause, 0), hours) for cause, hours in costs(causes)],
    )


def _lost(lost: Document) -> None:
    if lost:
        out.line("")
        out.show_table(("CAUSE", "GPU-HOURS-LOST"), costs(lost))


def _sums(recovery: Document) -> str:
    total, own, hours = (recovery.get(k) for k in ("total_s", "own_s", "gpu_hours_lost"))
    texts = [
        f"steps {steps(recovery)}",
        "not finished" if recovery["finished_at"] is None else "",
        "" if total is None else f"{total:.2f} s until the first new step",
        "" if own is None else f"{own:.2f} s of it {OWN}",
        "" if hours is None else f"{figure(hours)} GPU-hours lost",
    ]
    return ", ".join(filter(None, texts))


def _ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"
