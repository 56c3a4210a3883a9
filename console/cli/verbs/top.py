"""``top``: throughput and utilisation of the last second."""

from __future__ import annotations

import sys
import time
from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from console.cli.ask.options import AnyOutput, WatchOption, connect
from console.cli.errors import usage
from console.cli.show import output as out
from console.cli.show.kinds import measured
from console.cli.show.output import OutputFormat
from console.cli.show.text import NONE, percent, rate, size, sparkline, spread, written
from readings.reading import Object

if TYPE_CHECKING:
    from console.cli.ask.client import ControllerClient

Document = dict[str, Any]
History = dict[str, deque[float | None]]
_SAMPLES = 30
_HISTORY = "HISTORY"


class What(StrEnum):
    """What ``top`` shows."""

    JOBS = "jobs"
    CONTAINERS = "containers"
    ENDPOINTS = "endpoints"


def top(
    ctx: typer.Context,
    what: Annotated[What, typer.Argument(help="What to show.")] = What.JOBS,
    *,
    output: AnyOutput = OutputFormat.TABLE,
    watch: WatchOption = False,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="End -w after this many seconds.")
    ] = None,
) -> None:
    """Show live throughput and utilisation.

    With -w and -o json, one document a second on one line.
    """
    if watch and output is OutputFormat.YAML:
        raise usage("-w prints a table, names or JSON lines", "leave -o yaml out")
    with connect(ctx) as client:
        if (
            watch
            and sys.stdout.isatty()
            and not output.structured
            and output is not OutputFormat.NAME
        ):
            _full_screen(client, what, wide=output is OutputFormat.WIDE, count=count)
            return
        history = _remembered(client, what) if watch and not output.structured else {}
        updates = 0
        while True:
            _show(client.get("/top"), what, output, history, watch=watch)
            updates += 1
            if not watch or (count is not None and updates >= count):
                return
            time.sleep(1.0)


def _full_screen(client: ControllerClient, what: What, *, wide: bool, count: int | None) -> None:
    """Redraw the whole screen each second until interrupted, then restore it."""
    from rich.console import Group  # noqa: PLC0415 - start-up time
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    history = _remembered(client, what)
    updates = 0
    with Live(console=out.console(width=None), screen=True, auto_refresh=False) as screen:
        while count is None or updates < count:
            view = client.get("/top")
            rows: list[Document] = view[what.value]
            room = screen.console.width - out.width_of(*_table(what, rows, wide))
            heads, cells = _with_history(what, rows, history, wide=wide, room=room)
            table = out.table(heads, cells)
            table.width = out.width_of(heads, cells)  # cut at the edge, no column is squeezed
            title = Text(f"lightloom top {what.value}   Ctrl-C ends   {_foot(view)}", style="bold")
            title.no_wrap, title.overflow = True, "ellipsis"
            screen.update(Group(title, Text(""), table), refresh=True)
            updates += 1
            time.sleep(1.0)


def _remembered(client: ControllerClient, what: What) -> History:
    """Return the last half minute from the controller, so that the first screen has a line."""
    found: dict[str, list[float | None]] = {}
    for line in client.get("/series", since_s=_SAMPLES)["containers"]:
        name = {
            What.JOBS: line["job"],
            What.CONTAINERS: f"{line['job']}/{line['rank']}",
            What.ENDPOINTS: line["endpoint"],
        }[what]
        others = found.get(name, [None] * len(line["rx_bps"]))
        found[name] = [
            b if a is None else a if b is None else a + b
            for a, b in zip(others, line["rx_bps"], strict=True)
        ]
    return {name: deque(values, maxlen=_SAMPLES) for name, values in found.items()}


def _with_history(
    what: What, rows: list[Document], history: History, *, wide: bool, room: int = _SAMPLES
) -> tuple[list[str], list[list[object]]]:
    """Return the table with a sparkline of each row's received rate, of the last half minute.

    The line is as long as there is ``room``, in characters, and is left out where its head does
    not fit.
    """
    for row in rows:
        history.setdefault(row["name"], deque(maxlen=_SAMPLES)).append(row["rx_bps"])
    for name in history.keys() - {row["name"] for row in rows}:
        del history[name]
    heads, cells = _table(what, rows, wide)
    if room < len(_HISTORY):
        return heads, cells
    for row, line in zip(rows, cells, strict=True):
        line.append(sparkline(list(history[row["name"]])[-room:]))
    return [*heads, _HISTORY], cells


def _foot(view: Document) -> str:
    access = f", access links {rate(view['access_bps'])}" if view["access_bps"] else ""
    return f"epoch {view['epoch']}, excess span {view['excess_span']}{access}"


def _show(
    view: Document, what: What, output: OutputFormat, history: History, *, watch: bool
) -> None:
    rows: list[Document] = view[what.value]
    kept = ("time", "epoch", "access_bps", "excess_span")
    if output.structured:
        found = {**{key: view[key] for key in kept}, what.value: rows}
        if watch:
            out.json_line(found)
        else:
            out.document(found, output)
        return
    if output is OutputFormat.NAME:
        for row in rows:
            out.line(f"{what.value.removesuffix('s')}/{row['name']}")
        return
    wide = output is OutputFormat.WIDE
    if rows:
        heads, cells = (
            _with_history(what, rows, history, wide=wide) if watch else _table(what, rows, wide)
        )
        out.show_table(heads, cells)
    else:
        out.message(f"no {what.value}")
    out.message(_foot(view))


def _table(what: What, rows: list[Document], wide: bool) -> tuple[list[str], list[list[object]]]:
    common = ["STATE", "RX", "TX", "UTIL"]
    heads = {
        What.JOBS: ["NAME", *common, "SPREAD", "EXCESS"],
        What.CONTAINERS: ["NAME", *common, "JOB", "RANK", "ENDPOINT", "HOME"],
        What.ENDPOINTS: ["NAME", *common, "HOME", "JOB", "RANK"],
    }[what]
    if wide and what is not What.JOBS:
        heads.append("MEMORY")
    readings = measured(Object.GPU, rows)
    cells = [
        [_cell(row, head) for head in heads]
        + [written(reading, row.get(reading.name)) for reading in readings.values()]
        for row in rows
    ]
    return [*heads, *readings], cells


def _cell(row: Document, head: str) -> object:
    if head == "MEMORY":
        return size(row["memory_bytes"])
    if head in ("RX", "TX"):
        return rate(row[f"{head.lower()}_bps"])
    if head == "UTIL":
        return percent(row["utilisation"])
    if head == "SPREAD":
        return spread(row["spread"])
    value = row["excess_span" if head == "EXCESS" else head.lower()]
    return NONE if value is None else value
