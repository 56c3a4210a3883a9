"""``usage``: how long projects, users and jobs have held endpoints."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from typing import Annotated, Any

import typer

from base.figures import figure
from console.cli.ask.options import connect
from console.cli.show import output as out
from console.cli.show.text import NONE, age, moment_s

Document = dict[str, Any]
_SUMS = {"HELD": "held_s", "FROZEN": "frozen_s", "DARK": "dark_s", "WEIGHTED": "weighted_s"}


class UsageFormat(StrEnum):
    """The output formats of this verb."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


class By(StrEnum):
    """What a line is about."""

    PROJECT = "project"
    USER = "user"
    JOB = "job"


def usage(
    ctx: typer.Context,
    *,
    since: Annotated[
        str, typer.Option(help="From then on: 24h, 30d (ago), or 2026-01-31, 2026-01-31T12:00.")
    ] = "30d",
    until: Annotated[
        str | None, typer.Option(help="Up to then, in the same forms; now if absent.")
    ] = None,
    by: Annotated[By, typer.Option(help="What a line is about.")] = By.PROJECT,
    form: Annotated[
        UsageFormat,
        typer.Option("--output", "-o", help="Output format; JSON and CSV have seconds."),
    ] = UsageFormat.TABLE,
) -> None:
    """Show how long endpoints were held, frozen and dark, by project, user or job.

    Times are of endpoints: two endpoints held for an hour are two hours.
    """
    now = time.time()
    query: Document = {"by": by.value, "since": moment_s(since, now)}
    if until is not None:
        query["until"] = moment_s(until, now)
    with connect(ctx) as client:
        if form is UsageFormat.CSV:
            text = client.text("/usage", format="csv", **query)
            sys.stdout.write(out.harmless(text) if sys.stdout.isatty() else text)
            sys.stdout.flush()
            return
        view = client.get("/usage", **query)
    if form is UsageFormat.JSON:
        out.document(view, out.OutputFormat.JSON)
        return
    _show(view, by)


def _show(view: Document, by: By) -> None:
    names = ["job", "project", "user"] if by is By.JOB else [by.value]
    rows = [[line[name] or NONE for name in names] + _cells(line) for line in view["lines"]]
    blanks = [""] * (len(names) - 1)
    if any(view["others"].values()):
        rows.append(["(others)", *blanks, *_cells(view["others"])])
    rows.append(["(total)", *blanks, *_cells(view["total"])])
    out.show_table([*(name.upper() for name in names), *_SUMS, "JOBS"], rows)


def _cells(sums: Document) -> list[object]:
    return [*(_time(sums[name]) for name in _SUMS.values()), sums["jobs"]]


def _time(endpoint_s: float) -> str:
    return age(endpoint_s) if endpoint_s >= 60 else f"{figure(endpoint_s)}s"
