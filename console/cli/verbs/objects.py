"""``get`` lists objects, ``describe`` shows one with all its parts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from console.cli.ask.complete import of_context, of_kind
from console.cli.ask.options import AnyOutput, CountOption, IntervalOption, WatchOption, connect
from console.cli.errors import CliError, usage
from console.cli.show import output as out
from console.cli.show.describe import print_object
from console.cli.show.kinds import Cell, ListedKind, find, split
from console.cli.show.measure import show_measurement
from console.cli.show.output import OutputFormat
from console.cli.verbs.insight.measure import tables

if TYPE_CHECKING:
    from console.cli.ask.client import ControllerClient

Document = dict[str, Any]
_EVENT_PAGE = 1000
_TAIL_EVENTS = 20


def get(
    ctx: typer.Context,
    *,
    kind: Annotated[
        str,
        typer.Argument(
            help="jobs, endpoints, aggregators, switches, circuits, containers, events, nodes,"
            " images, volumes, measurements, predictions, drains, rollouts or secrets",
            autocompletion=of_kind(),
        ),
    ],
    name: Annotated[
        str | None, typer.Argument(help="One object; all if absent.", autocompletion=of_context)
    ] = None,
    output: AnyOutput = OutputFormat.TABLE,
    watch: WatchOption = False,
    interval_s: IntervalOption = 1.0,
    count: CountOption = None,
) -> None:
    """List objects, or show one on one line.

    With -w and -o json, every change is one JSON document on one line.
    """
    wanted, name = split(kind, name)
    with connect(ctx) as client:
        if watch:
            if output is OutputFormat.YAML:
                raise usage("-w prints a table, names or JSON lines", "leave -o yaml out")
            _watch(client, wanted, name, output, interval_s=interval_s, count=count)
        elif name is not None:
            item = fetch(client, wanted, name)
            _print(wanted, [item], output, item)
        else:
            page = _page(client, wanted)
            _print(wanted, page["items"], output, page)


def fetch(client: ControllerClient, kind: ListedKind, name: str) -> Document:
    """Return one object; CliError ``not_found`` when it does not exist."""
    if kind.singular in ("job", "measurement"):
        return client.get(f"/{kind.plural}/{client.part(name)}")
    items: list[Document] = _page(client, kind)["items"]
    for item in items:
        if str(kind.name(item)) == name:
            return item
    from sitefile.wording import meant  # noqa: PLC0415 - start-up time

    known = [str(kind.name(item)) for item in items]
    some = known[:12]
    raise CliError(
        "not_found",
        f"no {kind.singular} is called {name}{meant(name, known)}",
        object=f"{kind.singular}/{name}",
        hint=f"there are: {', '.join(some)}" if some else f"the site has no {kind.plural}",
    )


def describe(
    ctx: typer.Context,
    kind: Annotated[
        str,
        typer.Argument(
            help="A kind, as for get, or transaction.",
            autocompletion=of_kind(with_transactions=True),
        ),
    ],
    name: Annotated[
        str | None, typer.Argument(help="The object's name.", autocompletion=of_context)
    ] = None,
    output: AnyOutput = OutputFormat.TABLE,
) -> None:
    """Show one object with its conditions and its latest events."""
    if name is None and "/" in kind:
        kind, _, name = kind.partition("/")
    if name is None:
        raise usage("describe needs a name", f"for example: lightloom describe {kind} NAME")
    with connect(ctx) as client:
        if kind in ("transaction", "transactions"):
            title, item = "transaction", client.get(f"/transactions/{client.part(name)}")
        else:
            found = find(kind)
            title, item = found.singular, fetch(client, found, name)
        about = f"{title}/{name}"
        events = [e for e in _events(client, 0) if e["object"] == about][-_TAIL_EVENTS:]
    if output is OutputFormat.NAME:
        out.line(about)
    elif output.structured:
        out.document({**item, "events": events}, output)
    elif title == "measurement":
        show_measurement(item, tables)
    else:
        print_object(title, name, item, events)


def _page(client: ControllerClient, kind: ListedKind, since: int = 0) -> Document:
    """Return a whole list; for events, those after ``since``."""
    if kind.singular != "event":
        return client.whole(f"/{kind.plural}")
    events = _events(client, since)
    return {"items": events, "epoch": client.get("/health")["epoch"]}


def _events(client: ControllerClient, since: int) -> list[Document]:
    """Return all events after ``since``, page by page."""
    found: list[Document] = []
    while True:
        page: list[Document] = client.get("/events", since=since, limit=_EVENT_PAGE)["items"]
        found += page
        if len(page) < _EVENT_PAGE:
            return found
        since = page[-1]["id"]


def _print(
    kind: ListedKind, items: Iterable[Document], output: OutputFormat, whole: Document
) -> None:
    if output.structured:
        out.document(whole, output)
        return
    if output is OutputFormat.NAME:
        for item in items:
            out.line(f"{kind.singular}/{kind.name(item)}")
        return
    wide, shown = output is OutputFormat.WIDE, list(items)
    if not shown:
        out.message(f"no {kind.plural}")
    else:
        out.show_table(*kind.table(shown, wide))
    if kind.parts is not None and (rows := kind.parts.rows(shown)):
        out.line("")
        out.show_table(list(kind.parts.columns), rows)
    for text in kind.remarks(shown):
        out.message(text)


def _without_readings(item: Document) -> Document:
    """Return what makes an object another one; readings differ at every poll."""
    return {key: value for key, value in item.items() if key != "readings"}


def _watch(
    client: ControllerClient,
    kind: ListedKind,
    name: str | None,
    output: OutputFormat,
    *,
    interval_s: float,
    count: int | None,
) -> None:
    """Print every object once, then each one that changes."""
    shown: dict[str, Document] = {}
    cells: Mapping[str, Cell] = {}
    wide, updates, since = output is OutputFormat.WIDE, 0, 0
    while True:
        found = [fetch(client, kind, name)] if name else _page(client, kind, since)["items"]
        known = {str(kind.name(item)): _without_readings(item) for item in found}
        changed = [i for i in found if shown.get(n := str(kind.name(i))) != known[n]]
        if kind.singular == "event":  # events never change: request the newer ones only
            since = max((item["id"] for item in found), default=since)
        else:
            shown = known
        if output is OutputFormat.JSON:
            for item in changed:
                out.json_line(item)
        elif output is OutputFormat.NAME:
            for item in changed:
                out.line(f"{kind.singular}/{kind.name(item)}")
        elif changed:
            before, cells = cells, kind.shown(found, wide)
            rows = [[cell(item) for cell in cells.values()] for item in changed]
            head = before.keys() != cells.keys() or sys.stdout.isatty()
            out.show_table(list(cells), rows, head=head)
        updates += 1
        if count is not None and updates >= count:
            return
        time.sleep(interval_s)
