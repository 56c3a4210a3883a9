"""Routes for files: the allocation, the export of events, usage as JSON or CSV."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response, status

from controller.api.common import CHANGE_S, READ_S, DesksOf, SightOf
from controller.api.deadlines import change, within
from controller.api.encoding import whole
from controller.api.operation import MIB, operation
from controller.api.problems import responses
from controller.schema.base import Severity
from controller.schema.fabric import EventView
from controller.schema.insight.usage import By, UsageSumsView, UsageView
from controller.schema.plans import Allocation, AllocationDiffView

router = APIRouter(tags=["files"], responses=responses("unavailable"))
MAX_EVENTS = 10_000


@router.get("/allocation", responses=responses("forbidden"))
@operation("allocation:read")
async def get_allocation(desks: DesksOf) -> Allocation:
    """Show where every endpoint's light leads and which job holds it, as `import` takes it."""
    return desks.allocation.export()


@router.put(
    "/allocation",
    status_code=status.HTTP_202_ACCEPTED,
    responses=responses("forbidden", "not_found", "conflict"),
)
@operation("allocation:change", body=4 * MIB)
async def put_allocation(
    desks: DesksOf,
    body: Allocation,
    dry_run: Annotated[bool, Query(description="list the changes without making them")] = False,
    wait_s: Annotated[float, Query(ge=0, le=600, description="wait up to this long")] = 0.0,
) -> AllocationDiffView:
    """Move the endpoints that are not where the file says, in one transaction."""
    work = desks.allocation.bring_back(body, dry_run=dry_run, wait_s=wait_s)
    return await change(CHANGE_S + wait_s, "allocation", work)


@router.get(
    "/events/export",
    response_class=Response,
    responses={
        200: {
            "description": "One event per line, oldest first.",
            "content": {
                "application/x-ndjson": {"schema": {"type": "string"}},
                "text/csv": {"schema": {"type": "string"}},
            },
        },
        **responses("forbidden"),
    },
)
@operation("events:export")
async def export_events(
    desks: DesksOf,
    form: Annotated[
        Literal["jsonl", "csv"], Query(alias="format", description="JSON lines or CSV")
    ] = "jsonl",
    since: Annotated[int, Query(ge=0, lt=2**63, description="ids above this one")] = 0,
    severity: Annotated[Severity | None, Query(description="only of this severity")] = None,
    words: Annotated[
        str,
        Query(
            max_length=200,
            description="only events with all these words, in any field but time",
        ),
    ] = "",
) -> Response:
    """Export the stored events, with their stable ids and severities."""
    found = desks.fabric.events(since, MAX_EVENTS)
    wanted = words.lower().split()

    def text() -> str:
        events = [
            event
            for event in found
            if severity in (None, event.severity) and all(word in _words(event) for word in wanted)
        ]
        if form == "csv":
            return _csv(events)
        return "".join(event.model_dump_json() + "\n" for event in events)

    media_type = "text/csv" if form == "csv" else "application/x-ndjson"
    return Response(await asyncio.to_thread(text), media_type=media_type)


@router.get(
    "/usage",
    response_model=UsageView,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
@operation("usage:read")
async def get_usage(
    desks: DesksOf,
    sight: SightOf,
    *,
    since: Annotated[
        float | None,
        Query(ge=0, lt=2**40, description="seconds since 1970; default 30 days before the end"),
    ] = None,
    until: Annotated[
        float | None, Query(ge=0, lt=2**40, description="seconds since 1970; default now")
    ] = None,
    by: Annotated[By, Query(description="what a line is about")] = "project",
    form: Annotated[
        Literal["json", "csv"], Query(alias="format", description="a document or a table")
    ] = "json",
) -> Response:
    """Show the endpoint-seconds that jobs of the caller's projects held.

    By job, at most 500 lines: those that held most. In CSV, the last lines are `others` and
    `total`.
    """
    work = desks.usage.over(since, until, by, sight.projects())
    view = sight.show(await within(READ_S, "usage", work))
    if form == "json":
        return await whole(view)
    return Response(await asyncio.to_thread(_usage_csv, view), media_type="text/csv")


def _usage_csv(view: UsageView) -> str:
    """Write a line each, then the others and the total, which have their name in ``line``."""
    sums = list(UsageSumsView.model_fields)
    about = ["job", "submitted_at", "project", "user"] if view.by == "job" else [view.by]
    table = [[view.by, *(getattr(row, name) for name in (*about, *sums))] for row in view.lines]
    for word, row in (("others", view.others), ("total", view.total)):
        table.append([word, *("" for _ in about), *(getattr(row, name) for name in sums)])
    return _table(["line", *about, *sums], table)


def _words(event: EventView) -> str:
    """Return the text that is searched for words, the same as in the console's list."""
    parts = (event.id, event.severity, event.object, event.reason, event.message, event.epoch)
    return "\n".join(str(part) for part in parts).lower()


def _csv(events: list[EventView]) -> str:
    names = list(EventView.model_fields)
    return _table(names, [[getattr(event, name) for name in names] for event in events])


def _table(names: Sequence[str], table: Iterable[Sequence[object]]) -> str:
    """Write a table; cells that a spreadsheet would read as formulas are quoted."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(names)
    rows.writerows([_plain(value) for value in row] for row in table)
    return out.getvalue()


def _plain(value: object) -> object:
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value
