"""``report``: one job's record as a self-contained page with plots, events and last output."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from console.cli.ask.options import JobArgument, connect
from console.cli.errors import CliError
from console.cli.show import output as out

if TYPE_CHECKING:
    from console.cli.ask.client import ControllerClient

Document = dict[str, Any]

_MARGIN_S = 10.0
_LONGEST_S = 31 * 86400.0
_EVENTS = 1000
_LINES = 20
"""Of each rank's output, the last."""


def report(
    ctx: typer.Context,
    job: JobArgument,
    *,
    file: Annotated[
        Path | None, typer.Option("-o", "--out", help="File of the page; JOB.html if absent.")
    ] = None,
) -> None:
    """Write a job's record as one page: placement, curves, events, output."""
    name = job.removeprefix("job/")
    target = file or Path(f"{name}.html")
    with connect(ctx) as client:
        record = _record(client, name)
    from console.cli.show.page import page  # noqa: PLC0415 - start-up time

    try:
        target.write_text(page(f"Job {name}", record), encoding="utf-8")
    except OSError as error:
        raise CliError(
            "failed", f"{target} cannot be written: {error.strerror}", object=str(target)
        ) from None
    out.line(str(target))


_OF_MOVES = {"id", "cause", "started_at", "moves", "dark_time_s", "state", "result", "error"}
"""What the page shows of a transaction; the rest may name other jobs."""


def _record(client: ControllerClient, name: str) -> Document:
    """Read all that is known of a job; a part that cannot be read is named in ``unread``.

    ``answers`` are the answers to the page's requests, by path.
    """
    own, about = f"/jobs/{name}", f"job/{name}"
    asked = f"/jobs/{client.part(name)}"
    job = client.get(asked)
    del job["env"]  # no part of the page shows it, and a record is passed on
    job["secrets"] = {}
    written_at = time.time()
    back_s = min(_LONGEST_S, max(60.0, written_at - job["submitted_at"] + _MARGIN_S))
    answers: Document = {own: job, "/series": client.get("/series", since_s=back_s, job=name)}
    found = _events(client)
    moves = client.whole("/transactions")["items"]
    unread: list[str] = []
    output = _last_output(client, name, unread)

    def part(what: str, path: str, read: Callable[[], Any]) -> None:
        try:
            answers[path] = read()
        except CliError as error:
            if error.code not in ("not_found", "forbidden"):
                unread.append(f"{what}: {error.message}")

    part("communication", f"{own}/comms", lambda: client.get(f"{asked}/comms"))
    part("predictions", "/predictions", lambda: _predictions(client, name))
    part("advice", "/advice", lambda: client.get("/advice", job=name))
    if job["checkpoint"] is not None:
        part("checkpoints", f"{own}/checkpoints", lambda: client.get(f"{asked}/checkpoints"))
    part("recoveries", f"{own}/recoveries", lambda: client.get(f"{asked}/recoveries"))
    part("measurements", "/measurements", lambda: _measurements(client))
    measured = {m["id"]: m for m in answers.pop("/measurements", ())}
    return {
        "job": name,
        "written_at": written_at,
        "written": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(written_at)),
        "answers": answers | {f"/measurements/{ident}": m for ident, m in measured.items()},
        "measurements": list(measured),
        "events": [
            e for e in found if e["object"] == about and e["time"] >= job["submitted_at"] - 1
        ],
        "moves": [{key: t[key] for key in _OF_MOVES} for t in moves if name in t["jobs"]],
        "output": output,
        "unread": unread,
    }


def _events(client: ControllerClient) -> list[Document]:
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


def _last_output(client: ControllerClient, job: str, unread: list[str]) -> list[Document]:
    """Return the last lines of all ranks that have any."""
    found: list[Document] = []
    try:
        for line in client.lines(f"/jobs/{client.part(job)}/logs", follow=False, tail=_LINES):
            found.append(line)  # noqa: PERF402 - what came before an error counts
    except CliError as error:
        if error.code != "unavailable":  # a server does not answer, or the job never ran
            raise
        unread.append(f"output: {error.message}")
    return found


def _predictions(client: ControllerClient, job: str) -> Document:
    """Return the job's predictions; those of others are not part of its record."""
    items = client.whole("/predictions")["items"]
    return {"items": [prediction for prediction in items if prediction["job"] == job]}


def _measurements(client: ControllerClient) -> list[Document]:
    """Return the latest valid measurement of each type, with its result."""
    latest: dict[str, Document] = {}
    for m in client.whole("/measurements")["items"]:
        known = latest.get(m["type"])
        if m.get("valid") and (known is None or m["submitted_at"] > known["submitted_at"]):
            latest[m["type"]] = m
    return [client.get(f"/measurements/{client.part(m['id'])}") for m in latest.values()]
